"""The records that every plane shares: frozen, and valid from birth.

Messages become records in `longturn.codec` and nowhere else. Token ids and logprobs are tuples of Python numbers here;
whoever needs tensors converts them once.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

KnobValue = bool | int | float | str


class EpisodeStatus(enum.Enum):
    """Where an episode stands; the numbers are those of the wire."""

    RUNNING = 1
    TERMINATED = 2
    TRUNCATED = 3
    ABORTED = 4
    FAILED = 5

    @property
    def is_final(self) -> bool:
        """Whether no further step is possible."""
        return self is not EpisodeStatus.RUNNING

    @property
    def is_result(self) -> bool:
        """Whether the episode says something about the policy; only such a one may be a member of a group."""
        return self in (EpisodeStatus.TERMINATED, EpisodeStatus.TRUNCATED)


class EndCause(enum.Enum):
    """Why an episode was truncated or aborted; the numbers are those of the wire."""

    TURN_LIMIT = 1
    TOKEN_LIMIT = 2
    TIME_LIMIT = 3
    STALENESS = 4
    SHUTDOWN = 5
    CLIENT_REQUEST = 6
    LEASE_EXPIRED = 7
    MAX_EPISODE_TIME = 8

    @property
    def status(self) -> EpisodeStatus:
        """The final status that this cause leads to."""
        return EpisodeStatus.TRUNCATED if self in _TRUNCATING else EpisodeStatus.ABORTED

    @property
    def is_wall_time(self) -> bool:
        """Whether a clock ended the episode: such a one is a result, but no member of a group."""
        return self in (EndCause.TIME_LIMIT, EndCause.MAX_EPISODE_TIME)


_TRUNCATING = frozenset({EndCause.TURN_LIMIT, EndCause.TOKEN_LIMIT, EndCause.TIME_LIMIT, EndCause.MAX_EPISODE_TIME})


class FinishReason(enum.Enum):
    """Why the engine stopped a completion; the numbers are those of the wire."""

    STOP = 1
    LENGTH = 2
    ABORT = 3


class LogprobConvention(enum.Enum):
    """What an engine's logprobs mean; the numbers are those of the wire."""

    AFTER_TEMPERATURE = 1
    BEFORE_TEMPERATURE = 2


class RenderMode(enum.Enum):
    """How prompts are built; the numbers are those of the wire."""

    APPEND = 1
    WINDOW = 2


class Purpose(enum.Enum):
    """What a group is for; the numbers are those of the wire."""

    TRAIN = 1
    EVAL = 2


_LOGPROB_SLACK = 1e-4
"""Float32 rounding may put the logprob of a certain token this far above zero."""


def is_logprob(value: float) -> bool:
    """Whether a number can be the natural logarithm of a probability."""
    return math.isfinite(value) and value <= _LOGPROB_SLACK


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why something broke: a constant and a sentence."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is to be solved; the seed is apart."""

    environment: str
    task_id: str
    knobs: Mapping[str, KnobValue] = field(default_factory=dict[str, KnobValue])

    def __post_init__(self) -> None:
        if not self.environment or not self.task_id:
            raise ValueError(f"a task needs an environment and a task_id, got {self.environment!r}, {self.task_id!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What a step, or the start of an episode, left behind. Fields as in environment.proto."""

    observation: str
    reward: float = 0.0
    episode_return: float = 0.0
    score: float = 0.0
    success: bool = False
    status: EpisodeStatus = EpisodeStatus.RUNNING
    end_cause: EndCause | None = None
    failure: Failure | None = None
    turn_index: int = 0
    action_valid: bool = True
    progress: float | None = None
    oracle_action: str | None = None
    state_hash: bytes = b""
    admissible_actions: tuple[str, ...] = ()
    extras: Mapping[str, str] = field(default_factory=dict[str, str])
    rebuilt: bool = False

    def __post_init__(self) -> None:
        check_outcome(self.status, self.end_cause, self.failure)
        for name in ("reward", "episode_return", "score"):
            if not math.isfinite(getattr(self, name)):
                raise ValueError(f"{name} is not finite: {getattr(self, name)}")


def check_outcome(status: EpisodeStatus, end_cause: EndCause | None, failure: Failure | None) -> None:
    """Raise ValueError unless cause and failure are set exactly where the status asks for them."""
    if (end_cause is not None) != (status in (EpisodeStatus.TRUNCATED, EpisodeStatus.ABORTED)):
        raise ValueError(f"status {status.name} with end cause {end_cause}")
    if (failure is not None) != (status is EpisodeStatus.FAILED):
        raise ValueError(f"status {status.name} with failure {failure}")
    if end_cause is not None and end_cause.status is not status:
        raise ValueError(f"end cause {end_cause.name} does not lead to {status.name}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySpan:
    """The policy version that sampled completion tokens [start, end)."""

    start: int
    end: int
    policy_version: int

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end:
            raise ValueError(f"empty or negative span [{self.start}, {self.end})")
        if self.policy_version < 0:
            raise ValueError(f"policy_version {self.policy_version} is negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSpan:
    """Token positions [start, end) of a turn's completion_ids."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end:
            raise ValueError(f"negative span [{self.start}, {self.end})")


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnTimings:
    """Where a turn's time went."""

    policy_s: float = 0.0
    environment_s: float = 0.0
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One policy completion, what it was conditioned on, and what it led to.

    `prompt_ids` holds what was added since the previous turn (append mode) or the whole window (window mode).
    `behavior_logprobs` has one natural logarithm per completion token, as the engine sampled it, except for the last
    `num_synthetic_tokens`, which the policy did not sample and which carry 0.0 and are never trained.
    Demonstration turns may carry text only: no ids, no logprobs, no spans.
    """

    prompt_ids: tuple[int, ...] = ()
    completion_ids: tuple[int, ...] = ()
    behavior_logprobs: tuple[float, ...] = ()
    policy_spans: tuple[PolicySpan, ...] = ()
    finish_reason: FinishReason = FinishReason.STOP
    action: str
    observation: str
    action_valid: bool
    format_valid: bool = True
    reward: float = 0.0
    progress: float | None = None
    state_hash: bytes = b""
    reasoning_span: TokenSpan | None = None
    action_span: TokenSpan | None = None
    reasoning: str = ""
    timings: TurnTimings = TurnTimings()
    is_trained: bool = True
    num_synthetic_tokens: int = 0

    def __post_init__(self) -> None:
        num_tokens = len(self.completion_ids)
        if len(self.behavior_logprobs) != num_tokens:
            raise ValueError(f"{len(self.behavior_logprobs)} logprobs for {num_tokens} completion tokens")
        if not all(map(is_logprob, self.behavior_logprobs)):
            raise ValueError("a behavior logprob is positive or not finite")
        if not 0 <= self.num_synthetic_tokens <= num_tokens:
            raise ValueError(f"{self.num_synthetic_tokens} synthetic tokens among {num_tokens}")
        self._check_spans(num_tokens)

    def _check_spans(self, num_tokens: int) -> None:
        position = 0
        for span in self.policy_spans:
            if span.start != position:
                raise ValueError(f"policy spans leave a gap or overlap at token {position}")
            position = span.end
        if position != num_tokens:
            raise ValueError(f"policy spans cover {position} of {num_tokens} completion tokens")
        for span in (self.reasoning_span, self.action_span):
            if span is not None and span.end > num_tokens:
                raise ValueError(f"span ends at {span.end} of {num_tokens} completion tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How completions were sampled."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_new_tokens: int
    seed: int = 0

    def __post_init__(self) -> None:
        if self.temperature < 0.0:
            raise ValueError(f"temperature must be >= 0, got {self.temperature}")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p must lie in (0, 1], got {self.top_p}")
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be >= 1, got {self.max_new_tokens}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryIdentity:
    """Who a trajectory is; equal identities are the same trajectory."""

    run_id: str
    group_id: str
    member_index: int
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """What produced the completions; name and version are empty where it did not say."""

    name: str
    version: str
    logprob_convention: LogprobConvention = LogprobConvention.AFTER_TEMPERATURE


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """The data of one finished episode. Outcome fields are the server's own; nothing here is recomputed."""

    identity: TrajectoryIdentity | None = None
    retry_index: int = 0
    task: Task
    task_kind: str = ""
    seed: int
    initial_observation: str
    initial_progress: float | None = None
    initial_state_hash: bytes = b""
    turns: tuple[Turn, ...]
    status: EpisodeStatus
    end_cause: EndCause | None = None
    failure: Failure | None = None
    episode_return: float
    score: float
    score_min: float = 0.0
    score_max: float = 1.0
    success: bool
    sampling: SamplingParams | None = None
    tokenizer_hash: str = ""
    environment_version: str = ""
    data_hash: str = ""
    engine: EngineInfo | None = None
    render_mode: RenderMode = RenderMode.APPEND
    used_privileged: bool = False
    started_at_s: float = 0.0
    duration_s: float = 0.0

    def __post_init__(self) -> None:
        if not self.status.is_final:
            raise ValueError("a trajectory is the data of a finished episode")
        check_outcome(self.status, self.end_cause, self.failure)
        if not (math.isfinite(self.episode_return) and math.isfinite(self.score)):
            raise ValueError(f"episode_return {self.episode_return} or score {self.score} is not finite")

    @property
    def num_completion_tokens(self) -> int:
        """Number of tokens the policy sampled in all turns."""
        return sum(len(turn.completion_ids) - turn.num_synthetic_tokens for turn in self.turns)

    @property
    def policy_versions(self) -> frozenset[int]:
        """Versions that sampled its tokens; empty without tokens."""
        return frozenset(span.policy_version for turn in self.turns for span in turn.policy_spans)
