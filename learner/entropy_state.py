"""What the trainer remembers of entropy, and the constants that follow from it for a training step."""

from __future__ import annotations

from learner.batch import BatchTensors
from learner.diagnostics.turn_entropy import entropy_by_turn
from learner.losses.entropy_history import TurnEntropyHistory, released_row
from learner.losses.epo import EpoStep, epo_step
from learner.state import TrainerState
from learner.step_terms import Scores
from learner.update_options import UpdateOptions


def entropy_step(
    state: TrainerState,
    options: UpdateOptions,
    pool: BatchTensors,
    proximal: Scores | None,
    *,
    total_steps: int,
    max_turns: int,
) -> EpoStep | None:
    """Constants of the entropy term at the coming update; None without one.

    Histories hold earlier steps only, except under `turn_released`, which repeats the released code. `proximal` may be
    absent unless an adaptive coefficient or `turn_released` looks at the step's own entropy (ValueError).
    """
    epo = options.loss.epo
    if epo is None:
        return None
    scale, turn_history = 1.0, None
    if options.adaptive is not None:
        scale = options.adaptive.applied(state.entropy_coefficient, mean_entropy(_needed(proximal)))
    if epo.history_scope == "turn":
        turn_history = state.turn_entropy_history
    if epo.history_scope == "turn_released":
        turn_history = _with_released_row(state.turn_entropy_history, pool, _needed(proximal), max_turns)
    return epo_step(
        epo, state.entropy_history, state.training_step, total_steps, turn_history=turn_history, scale=scale
    )


def remember_entropy(
    state: TrainerState, options: UpdateOptions, pool: BatchTensors, scores: Scores, *, max_turns: int
) -> None:
    """Append the policy as it was before the update, over all tokens that were scored."""
    mean = mean_entropy(scores)
    state.entropy_history = state.entropy_history.appended(mean)
    if options.adaptive is not None:
        state.entropy_coefficient = options.adaptive.moved(state.entropy_coefficient, mean)
    if options.loss.epo is not None and options.loss.epo.history_scope == "turn_released":
        state.turn_entropy_history = _with_released_row(state.turn_entropy_history, pool, scores, max_turns)
    else:
        state.turn_entropy_history = state.turn_entropy_history.appended(_by_turn(pool, scores))


def mean_entropy(scores: Scores) -> float:
    """Token mean in nats: what the histories, EPO's above all, take per training step."""
    return scores.entropies_N.double().mean().item()


def _by_turn(pool: BatchTensors, scores: Scores) -> tuple[float | None, ...]:
    return entropy_by_turn(scores.entropies_N, scores.entropies_N.new_ones(pool.num_tokens), pool.layout)


def _with_released_row(
    history: TurnEntropyHistory, pool: BatchTensors, scores: Scores, max_turns: int
) -> TurnEntropyHistory:
    return history.appended(released_row(_by_turn(pool, scores), max_turns))


def _needed(proximal: Scores | None) -> Scores:
    if proximal is None:
        raise ValueError("this entropy term looks at the step's own entropy, which was not scored")
    return proximal
