"""EPO's variants and the baselines beside it."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from learner.advantages.clip_cov import ClipCov
from learner.advantages.covariance import token_covariances
from learner.advantages.entropy_advantage import EntropyAdvantage
from learner.advantages.token_shaping import ShapingInputs
from learner.advantages.top_entropy import TopEntropy, entropy_threshold
from learner.losses.adaptive_coefficient import AdaptiveOptions
from learner.losses.entropy_history import EntropyHistory, HistoryOptions, TurnEntropyHistory, released_row
from learner.losses.entropy_weights import EntropyInputs, TurnCap, TurnDecay, entropy_weights, token_references
from learner.losses.epo import EpoOptions, EpoStep, corridor_occupancy, corridor_penalty, epo_step, gradient_shares
from learner.losses.kl_cov import KlCov
from learner.losses.ppo import PpoOptions
from tests.learner.math.golden_files import double
from tests.learner.math.layouts import flatten, layout_of

small = settings(max_examples=40, deadline=None)
VALUES = st.lists(
    st.tuples(st.floats(-5, 0), st.floats(-3, 3), st.floats(0, 4), st.booleans()), min_size=1, max_size=20
)


def shaping(
    advantages: Tensor,
    logprobs: Tensor,
    entropies: Tensor | None = None,
    mask: Tensor | None = None,
    anchor: Tensor | None = None,
) -> ShapingInputs:
    return ShapingInputs(
        advantages_N=advantages,
        logprobs_N=logprobs,
        entropies_N=torch.ones_like(advantages) if entropies is None else entropies,
        anchor_logprobs_N=logprobs if anchor is None else anchor,
        mask_N=torch.ones_like(advantages, dtype=torch.bool) if mask is None else mask,
        seed="seed",
    )


def columns(values: list[tuple[float, float, float, bool]]) -> ShapingInputs:
    logprobs, advantages, entropies, mask = zip(*values, strict=True)
    return shaping(double(advantages), double(logprobs), double(entropies), torch.tensor(mask))


@small
@given(values=VALUES)
def test_covariances_average_to_the_covariance_and_ignore_the_mask(
    values: list[tuple[float, float, float, bool]],
) -> None:
    inputs = columns(values)
    found = token_covariances(inputs.logprobs_N, inputs.advantages_N, inputs.mask_N)
    assert found[~inputs.mask_N].isneginf().all()
    chosen = inputs.mask_N.nonzero()[:, 0]
    if len(chosen) > 1:
        pair = torch.stack([inputs.logprobs_N[chosen], inputs.advantages_N[chosen]])
        torch.testing.assert_close(found[chosen].mean(), torch.cov(pair, correction=0)[0, 1])


@small
@given(values=VALUES, share=st.floats(0.05, 1.0))
def test_clip_cov_silences_at_most_its_share_and_only_tokens_of_high_covariance(
    values: list[tuple[float, float, float, bool]], share: float
) -> None:
    inputs = columns(values)
    shaper = ClipCov(ppo=PpoOptions(), share=share, low=0.1, high=2.0)
    shaped = shaper(inputs)
    changed = shaped != inputs.advantages_N
    covariances = token_covariances(inputs.logprobs_N, inputs.advantages_N, inputs.mask_N)
    assert not shaped[changed].any()
    assert int(changed.sum()) <= max(1, int(share * int(inputs.mask_N.sum())))
    assert ((covariances[changed] > 0.1) & (covariances[changed] < 2.0)).all()
    assert torch.equal(shaper(inputs), shaped)


def test_clip_cov_passes_over_tokens_that_the_clip_decides() -> None:
    logprobs, advantages = double([0.0, 0.0, -4.0, -4.0]), double([2.0, 2.0, -2.0, -2.0])
    anchor = double([-1.0, 0.0, -4.0, -4.0])
    shaper = ClipCov(ppo=PpoOptions(), share=1.0)
    shaped = shaper(shaping(advantages, logprobs, anchor=anchor))
    assert shaped.tolist() == [2.0, 0.0, 0.0, 0.0]


def test_kl_cov_weighs_the_tokens_of_highest_covariance() -> None:
    logprobs, advantages = double([0.0, -1.0, -2.0, -9.0]), double([1.0, 0.0, 0.5, -2.0])
    mask = torch.tensor([True, True, True, False])
    inputs = shaping(advantages, logprobs, mask=mask)
    assert KlCov(share=0.34, coefficient=0.5)(inputs).tolist() == [0.5, 0.0, 0.0, 0.0]
    assert KlCov()(inputs).tolist() == [1.0, 0.0, 0.0, 0.0]
    nobody = shaping(advantages, logprobs, mask=torch.zeros(4, dtype=torch.bool))
    assert not KlCov()(nobody).any()


@small
@given(values=VALUES, share=st.floats(0.05, 1.0), pads=st.integers(1, 4))
def test_top_entropy_keeps_its_share_and_padding_moves_no_threshold(
    values: list[tuple[float, float, float, bool]], share: float, pads: int
) -> None:
    inputs = columns(values)
    threshold = entropy_threshold(inputs.entropies_N, inputs.mask_N, share)
    shaped = TopEntropy(share=share)(inputs)
    chosen = inputs.entropies_N[inputs.mask_N]
    if len(chosen):
        assert int((chosen >= threshold).sum()) >= math.ceil(share * len(chosen) - 1e-9)
        assert int((chosen > threshold).sum()) < math.ceil(share * len(chosen) - 1e-9)
        assert shaped[inputs.entropies_N == threshold].equal(inputs.advantages_N[inputs.entropies_N == threshold])
    assert not shaped[inputs.entropies_N < threshold].any()
    padded = columns([*values, *[(-1.0, 0.0, 99.0, False)] * pads])
    assert entropy_threshold(padded.entropies_N, padded.mask_N, share) == threshold


@small
@given(values=VALUES)
def test_the_entropy_advantage_keeps_every_sign(values: list[tuple[float, float, float, bool]]) -> None:
    inputs = columns(values)
    shaped = EntropyAdvantage()(inputs)
    assert (shaped >= inputs.advantages_N).all()
    assert torch.equal(shaped.sign(), inputs.advantages_N.sign())


def test_the_adaptive_coefficient_seeks_its_target_within_bounds() -> None:
    options, coefficient, seen = AdaptiveOptions(target=1.0, step=0.4, largest=1.0), 0.0, []
    for entropy in (0.5, 0.5, 0.5, 0.5, 1.5, 1.5, 1.5, 1.5):
        seen.append((options.applied(coefficient, entropy), coefficient))
        coefficient = options.moved(coefficient, entropy)
    assert [round(applied, 9) for applied, _ in seen] == [0.0, 0.4, 0.8, 1.0, 0.0, 0.0, 0.0, 0.0]
    assert coefficient == 0.0


NESTED = [[[0.2, 0.4], [2.0]], [[1.5], [0.1, 0.1], [3.0, 5.0]]]


def inputs_of(nested: list[list[list[float]]]) -> EntropyInputs:
    entropies = flatten(nested)
    return EntropyInputs(entropies_N=entropies, mask_N=torch.ones_like(entropies), layout=layout_of(nested))


def test_the_capped_bonus_has_the_gradient_of_the_capped_turn_mean() -> None:
    inputs = inputs_of(NESTED)
    entropies = inputs.entropies_N.clone().requires_grad_()
    turns = torch.zeros(5, dtype=torch.float64).index_add(0, inputs.layout.turn_index_N, entropies)
    means = turns / double([2, 1, 1, 2, 2])
    capped = means.clamp(max=1.0).mean()
    (expected,) = torch.autograd.grad(capped, entropies)
    weights = entropy_weights(
        inputs, EpoOptions(average="turn_mean"), EpoStep(beta=1.0, reference=None), TurnCap(cap=1.0)
    )
    torch.testing.assert_close(weights.double(), expected, atol=1e-7, rtol=0.0)


def test_decay_over_turns_falls_from_the_first_to_the_last_turn_of_each_episode() -> None:
    inputs = inputs_of([*NESTED, [[7.0]]])
    assert TurnDecay(floor=0.2)(inputs).tolist() == pytest.approx([1.0, 0.2, 1.0, 0.6, 0.2, 1.0])


def test_decay_over_training_scales_the_whole_term() -> None:
    options = EpoOptions(decay="steps", decay_floor=0.5)
    scales = [epo_step(options, EntropyHistory(), step, 5).scale for step in range(5)]
    assert scales == [1.0, 0.875, 0.75, 0.625, 0.5]
    step = epo_step(options, EntropyHistory(), 4, 5, scale=0.5)
    plain = entropy_weights(inputs_of(NESTED), EpoOptions(), EpoStep(beta=1.0, reference=None), None)
    torch.testing.assert_close(entropy_weights(inputs_of(NESTED), options, step, None), 0.25 * plain)


def test_without_a_dynamic_weight_beta_stays_one() -> None:
    assert epo_step(EpoOptions(dynamic_weight=False), EntropyHistory(), 3, 10).beta == 1.0


def test_the_base_arm_has_the_plain_bonus_only() -> None:
    step, entropies = EpoStep(beta=2.0, reference=1.0), double([0.1, 9.0])
    assert gradient_shares(entropies, torch.ones(2), step, EpoOptions(smooth_coefficient=0.0)) == (0.002, 0.0)


def test_references_follow_the_turn_index_and_are_absent_where_no_episode_got() -> None:
    history = TurnEntropyHistory().appended((1.0, 3.0)).appended((2.0, None, 5.0))
    assert history.references == (1.5, 3.0, 5.0)
    step = EpoStep(beta=1.0, reference=9.0, turn_references=(1.5, 3.0))
    layout = layout_of(NESTED)
    references = token_references(layout, step)
    assert references is not None
    assert references.tolist()[:6] == [1.5, 1.5, 3.0, 1.5, 3.0, 3.0]
    assert references[6:].isnan().all()
    entropies = flatten(NESTED)
    penalty = corridor_penalty(entropies, step, EpoOptions(kappa_high=1.2), references)
    assert not penalty[6:].any()
    assert corridor_occupancy(entropies, torch.ones(8), step, EpoOptions(), references).above == 0.0


def test_one_reference_for_all_needs_none_per_token() -> None:
    assert token_references(layout_of(NESTED), EpoStep(beta=1.0, reference=1.0)) is None


ROWS = st.lists(st.lists(st.none() | st.floats(0, 5), max_size=5), max_size=8)


@small
@given(rows=ROWS, kind=st.sampled_from(["cumulative", "sliding", "ema"]))
def test_histories_per_turn_are_those_of_each_turn_alone_and_survive_their_state(
    rows: list[list[float | None]], kind: str
) -> None:
    options = HistoryOptions(kind=kind, window=2)
    history = TurnEntropyHistory(options=options)
    for row in rows:
        history = history.appended(row)
    for index, reference in enumerate(history.references):
        alone = EntropyHistory(options=options)
        for row in rows:
            if index < len(row) and row[index] is not None:
                alone = alone.appended(row[index])  # type: ignore[arg-type]
        assert alone.reference == reference
    assert TurnEntropyHistory.from_state(history.to_state(), options) == history


def test_a_history_does_not_grow_with_the_number_of_steps() -> None:
    history = EntropyHistory(options=HistoryOptions(window=3))
    for index in range(100):
        history = history.appended(float(index))
    assert len(history.recent) == 3
    assert history.num_steps == 100


def test_released_rows_are_padded_on_the_left_and_cut_to_the_limit() -> None:
    assert released_row((1.0, None), 4) == (0.0, 0.0, 1.0, 0.0)
    assert released_row((1.0, 2.0, 3.0), 2) == (2.0, 3.0)


@pytest.mark.parametrize("field", ["weight_schedule", "form", "average", "decay", "history_scope"])
def test_an_unknown_choice_is_answered_with_the_known_ones(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field} must be one of"):
        EpoOptions(**{field: "other"})  # type: ignore[arg-type]
