"""Which trajectories may enter the ledger: what a group member must be, apart from being assigned."""

from __future__ import annotations

from dataclasses import dataclass

from learner.ledger.versions import VersionTable
from learner.rows import RowError, build_rows
from longturn.records import LogprobConvention, Purpose, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceRules:
    """What the loss relies on."""

    tokenizer_hash: str
    temperature: float
    vocabulary_size: int
    max_row_tokens: int


def refusal_reason(trajectory: Trajectory, rules: AcceptanceRules, *, purpose: Purpose, versions: VersionTable) -> str:
    """Why a trajectory is refused; empty if it is welcome. Finite logprobs are the record's own promise."""
    if not trajectory.status.is_result:
        return f"NOT_A_MEMBER: status {trajectory.status.name} is no result of the policy"
    if trajectory.end_cause is not None and trajectory.end_cause.is_wall_time:
        return "NOT_A_MEMBER: an episode cut by wall time is played again, not trained on"
    if not trajectory.num_completion_tokens:
        return "NO_TOKENS: the policy sampled nothing"
    if trajectory.tokenizer_hash != rules.tokenizer_hash:
        return f"TOKENIZER_MISMATCH: ids of tokenizer {trajectory.tokenizer_hash[:12]!r}"
    unknown = _unknown_version(trajectory, versions)
    if unknown is not None:
        return f"UNKNOWN_VERSION: tokens of policy version {unknown}, which was never published"
    return _sampling_refusal(trajectory, rules, purpose)


def _unknown_version(trajectory: Trajectory, versions: VersionTable) -> int | None:
    found = sorted(trajectory.policy_versions)
    return next((version for version in found if versions.training_step(version) is None), None)


def _sampling_refusal(trajectory: Trajectory, rules: AcceptanceRules, purpose: Purpose) -> str:
    sampling, engine = trajectory.sampling, trajectory.engine
    if sampling is None or engine is None:
        return "NO_SAMPLING: sampling parameters and engine are needed to read its logprobs"
    # At temperature 1 both conventions are the same number.
    if engine.logprob_convention is LogprobConvention.BEFORE_TEMPERATURE and sampling.temperature != 1.0:
        return "LOGPROB_CONVENTION: logprobs must be those after temperature"
    if purpose is Purpose.EVAL:
        return ""
    # Logprobs of a truncated distribution are not those the loss computes.
    if sampling.top_p != 1.0 or sampling.top_k != 0:
        return f"TRUNCATED_SAMPLING: top_p {sampling.top_p} and top_k {sampling.top_k}; training needs 1 and 0"
    if abs(sampling.temperature - rules.temperature) > 1e-6:
        return f"TEMPERATURE: sampled at {sampling.temperature}, the run trains at {rules.temperature}"
    return _row_refusal(trajectory, rules)


def _row_refusal(trajectory: Trajectory, rules: AcceptanceRules) -> str:
    """Rows that the learner cannot build are refused here: in a batch they would end every start of the learner."""
    try:
        build_rows(trajectory, vocabulary_size=rules.vocabulary_size, max_row_tokens=rules.max_row_tokens)
    except RowError as error:
        return f"{error.reason}: {error}"
    return ""
