"""What holds for every filter rule, and the streaming rule against the rule of whole batches."""

import json
import math
import random
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learner.filters.fraction import Fraction
from learner.filters.has_variance import HasVariance
from learner.filters.keep_all import KeepAll
from learner.filters.loss_scaling import LOSS_SCALINGS
from learner.filters.min_p import MinP
from learner.filters.running_scores import RunningScores
from learner.filters.selection import GroupFilter, Selection, Verdict
from learner.filters.shadow import GroupFacts, ShadowReport
from learner.filters.std_linear import StdLinear
from learner.filters.std_softmax import StdSoftmax
from learner.filters.streaming import StreamingMass
from learner.filters.top_k import TopK
from learner.filters.variance_mass import VarianceMass

small = settings(max_examples=40, deadline=None)
SCORES = st.lists(st.sampled_from([0.0, 0.1, 0.25, 1.0, 3.5, 40.0]), max_size=9)
RULES: dict[str, GroupFilter] = {
    "variance_mass": VarianceMass(),
    "none": KeepAll(),
    "fraction": Fraction(share=0.5),
    "top_k": TopK(num_groups=2),
    "min_p": MinP(),
    "std_linear": StdLinear(),
    "std_softmax": StdSoftmax(),
    "has_variance": HasVariance(),
}


@small
@given(scores=SCORES, name=st.sampled_from(sorted(RULES)))
def test_every_rule_gives_each_group_one_verdict_and_keeps_the_best(scores: list[float], name: str) -> None:
    selection = RULES[name].select(scores)
    kept = {index for index, verdict in enumerate(selection.verdicts) if verdict is Verdict.KEPT}
    assert len(selection.verdicts) == len(scores)
    assert kept == set(selection.kept)
    assert len(kept) == len(selection.kept)
    left = [score for index, score in enumerate(scores) if index not in kept]
    assert min((scores[index] for index in kept), default=math.inf) >= max(left, default=0.0)
    assert selection.scores == tuple(scores)
    assert 0.0 <= selection.kept_mass <= 1.0 + 1e-12


@small
@given(scores=SCORES, seed=st.integers(0, 99), name=st.sampled_from(sorted(RULES)))
def test_every_rule_is_indifferent_to_the_order_of_groups(scores: list[float], seed: int, name: str) -> None:
    order = random.Random(seed).sample(range(len(scores)), len(scores))
    kept, permuted = RULES[name].select(scores).kept, RULES[name].select([scores[index] for index in order]).kept
    assert sorted(scores[index] for index in kept) == sorted(scores[order[index]] for index in permuted)


@small
@given(ratio=st.floats(0, 1))
def test_loss_scalings_shrink_with_the_kept_ratio_and_leave_a_whole_batch_alone(ratio: float) -> None:
    assert LOSS_SCALINGS["none"](ratio) == 1.0
    assert LOSS_SCALINGS["linear"](ratio) == ratio
    assert ratio <= LOSS_SCALINGS["sqrt"](ratio) <= 1.0
    assert {scale(1.0) for scale in LOSS_SCALINGS.values()} == {1.0}


@small
@given(
    scores=st.lists(st.floats(0.0, 50.0), min_size=1, max_size=9, unique=True), mass=st.sampled_from([0.5, 0.9, 1.0])
)
def test_a_group_judged_among_all_others_of_its_batch_gets_the_verdict_of_the_batch(
    scores: list[float], mass: float
) -> None:
    rule = VarianceMass(mass=mass)
    for index, verdict in enumerate(rule.select(scores).verdicts):
        others = [(score, 1.0) for other, score in enumerate(scores) if other != index]
        assert rule.judge(scores[index], others) is verdict


def streamed(groups: list[list[float]], *, decay: float = 0.9) -> tuple[list[Selection], ShadowReport]:
    rule = VarianceMass()
    stream, report = StreamingMass(rule=rule, groups_per_batch=len(groups[0])), ShadowReport()
    selections = []
    for index, scores in enumerate(groups):
        selection = stream.select(scores)
        facts = [GroupFacts(kind=f"kind-{n % 2}", duration="below_2_s", lag=index % 2) for n in range(len(scores))]
        report.observe(facts, selection, rule)
        stream.running.fade(decay)
        selections.append(selection)
    return selections, report


def drawn(num_batches: int, size: int, seed: int = 0) -> list[list[float]]:
    order = random.Random(seed)
    return [[order.choice([0.0, order.expovariate(1.0) ** 2]) for _ in range(size)] for _ in range(num_batches)]


def test_the_stream_judges_each_group_before_it_knows_the_next() -> None:
    batch = drawn(1, 8)[0]
    whole, _ = streamed([batch])
    for length in range(1, 9):
        stream = StreamingMass(groups_per_batch=8)
        assert stream.select(batch[:length]).verdicts == whole[0].verdicts[:length]


def test_groups_without_variance_never_pass_the_stream() -> None:
    selections, _ = streamed(drawn(20, 8))
    for selection in selections:
        pairs = zip(selection.scores, selection.verdicts, strict=True)
        assert all((verdict is Verdict.ZERO_VARIANCE) == (score == 0) for score, verdict in pairs)


def test_a_stream_of_weak_groups_keeps_none_and_says_why() -> None:
    stream = StreamingMass(groups_per_batch=2)
    assert stream.select([0.001, 0.002]).verdicts == (Verdict.WEAK_BATCH, Verdict.WEAK_BATCH)


def test_after_a_while_the_stream_keeps_about_the_mass_of_the_batch_rule() -> None:
    selections, report = streamed(drawn(200, 8))
    assert report.measures()["learner/snr_shadow/stream/kept_mass"] == pytest.approx(0.9, abs=0.07)
    assert fmean(selection.kept_mass for selection in selections[20:]) == pytest.approx(0.9, abs=0.1)
    assert 0.0 < report.disagreement_rate < 0.3


def test_the_stream_forgets_old_scores_and_keeps_its_memory_bounded() -> None:
    stream = StreamingMass(groups_per_batch=4)
    for _ in range(30):
        stream.select([100.0] * 4)
        stream.running.fade(0.5)
    assert len(stream.running.entries) <= 4 * 10
    for _ in range(20):
        kept = stream.select([1.0] * 4).kept
        stream.running.fade(0.5)
    assert len(kept) == 4


def test_running_scores_survive_the_checkpoint_and_judge_alike() -> None:
    first = StreamingMass(groups_per_batch=8)
    for scores in drawn(5, 8):
        first.select(scores)
        first.running.fade(0.9)
    state = json.loads(json.dumps(first.running.to_state()))
    second = StreamingMass(groups_per_batch=8, running=RunningScores.from_state(state))
    batch = drawn(1, 8, seed=7)[0]
    assert first.select(batch) == second.select(batch)


def test_the_report_counts_both_rules_by_kind_duration_and_lag() -> None:
    rule, report = VarianceMass(epsilon=0.0), ShadowReport()
    facts = [
        GroupFacts(kind="a", duration="below_2_s", lag=0),
        GroupFacts(kind="a", duration="below_8_s", lag=1),
        GroupFacts(kind="", duration="below_8_s", lag=1),
    ]
    # The batch rule keeps the first two.
    verdicts = (Verdict.KEPT, Verdict.OUTRANKED, Verdict.KEPT)
    report.observe(facts, Selection(scores=(5.0, 4.0, 1.0), verdicts=verdicts, kept=(0, 2)), rule)
    report = ShadowReport.from_state(json.loads(json.dumps(report.to_state())))
    measures = report.measures()
    assert report.disagreement_rate == pytest.approx(2 / 3)
    assert report.dropped_share == 0.5
    assert measures["learner/snr_shadow/stream/kept_mass"] == pytest.approx(0.6)
    assert measures["learner/snr_shadow/batch_rule/kept_mass"] == pytest.approx(0.9)
    assert measures["learner/snr_shadow/stream/kept_share/kind/a"] == 0.5
    assert measures["learner/snr_shadow/batch_rule/kept_share/kind/a"] == 1.0
    assert measures["learner/snr_shadow/stream/kept_share/kind/unnamed"] == 1.0
    assert measures["learner/snr_shadow/stream/kept_share/duration/below_8_s"] == 0.5
    assert measures["learner/snr_shadow/batch_rule/kept_share/lag/1"] == 0.5


def test_a_report_on_nothing_is_zero() -> None:
    report = ShadowReport()
    report.observe([], VarianceMass().select([]), VarianceMass())
    assert (report.disagreement_rate, report.dropped_share) == (0.0, 0.0)
