"""An environment without a simulator, for load tests and first steps: say the word that the observation asks for."""

import hashlib
import time
from collections.abc import Mapping, Sequence
from typing import ClassVar

from env_server.environment import (
    Determinism,
    Environment,
    EnvironmentSpec,
    KnobError,
    KnobSpec,
    KnobValue,
    TaskInfo,
    TaskNotFoundError,
    Transition,
)

NUM_TASKS = {"train": 1_000_000, "valid": 10_000, "test": 10_000}
_WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heron", "inlet", "jetty", "knoll", "larch")
_FILLER = "The echo of the last call fades between the walls of the gorge. "

KNOBS = (
    KnobSpec(name="horizon", kind="int", default=50, minimum=1, maximum=1_000_000, description="turns to the end"),
    KnobSpec(
        name="observation_bytes",
        kind="int",
        default=400,
        minimum=64,
        maximum=64 * 2**20,
        description="size of each observation",
    ),
    KnobSpec(
        name="step_sleep_ms",
        kind="float",
        default=0.0,
        minimum=0.0,
        maximum=600_000.0,
        description="time each step sleeps",
    ),
)


class EchoEnvironment(Environment):
    """Each turn asks for a word; saying it earns 1/horizon. Success is all words said. Ids are `echo/SPLIT/INDEX`."""

    spec: ClassVar[EnvironmentSpec] = EnvironmentSpec(
        name="echo",
        version="1",
        data_hash="echo-1",
        action_format="The word asked for.",
        max_turns=100,
        knobs=KNOBS,
        determinism=Determinism.EXACT,
        is_forkable=True,
        is_thread_safe=True,
        splits=tuple(NUM_TASKS),
        has_oracle=True,
        has_progress=True,
        licence="Apache-2.0",
        description="Say the word asked for; no simulator behind it.",
    )

    def __init__(self) -> None:
        self._horizon = 0
        self._observation_bytes = 0
        self._sleep_s = 0.0
        self._turn = 0
        self._num_said = 0
        self._hash = b""

    @classmethod
    def num_tasks(cls, split: str, filters: Mapping[str, str] | None = None) -> int:
        if split not in NUM_TASKS:
            raise KnobError("split", f"{cls.spec.name} has no split {split!r}; splits are {', '.join(NUM_TASKS)}")
        if filters:
            raise KnobError(next(iter(filters)), f"{cls.spec.name} has no filters")
        return NUM_TASKS[split]

    @classmethod
    def tasks(
        cls, split: str, start: int = 0, count: int = 100, filters: Mapping[str, str] | None = None
    ) -> Sequence[TaskInfo]:
        stop = min(start + count, cls.num_tasks(split, filters))
        return [cls._info(split, index) for index in range(max(start, 0), stop)]

    @classmethod
    def task(cls, task_id: str) -> TaskInfo:
        name, _, rest = task_id.partition("/")
        split, _, index = rest.partition("/")
        is_number = index.isascii() and index.isdigit() and len(index) <= 9
        number = min(int(index), NUM_TASKS.get(split, 1) - 1) if is_number else 0
        info = cls._info(split if split in NUM_TASKS else "train", number)
        if name != cls.spec.name or info.task_id != task_id:
            raise TaskNotFoundError(task_id, nearest=info.task_id)
        return info

    def reset(self, task_id: str, seed: int, knobs: Mapping[str, KnobValue]) -> Transition:
        self.task(task_id)
        self.begin(task_id, seed, self.spec.resolve_knobs(knobs))
        return self.transition("The gorge is silent.", reward=0.0)

    def step(self, action: str) -> Transition:
        return self.advance(action)

    def oracle(self) -> str | None:
        return self._word()

    def close(self) -> None:
        """Nothing is held."""

    def begin(self, task_id: str, seed: int, knobs: Mapping[str, KnobValue]) -> None:
        """Take the settings of a new episode."""
        self._horizon = int(knobs["horizon"])
        self._observation_bytes = int(knobs["observation_bytes"])
        self._sleep_s = float(knobs["step_sleep_ms"]) / 1000
        self._turn = self._num_said = 0
        self._hash = _digest(f"{task_id}|{seed}".encode())

    def advance(self, action: str) -> Transition:
        """Take one turn."""
        if self._turn >= self._horizon:
            raise RuntimeError("step after the end of the episode")
        if self._sleep_s:
            time.sleep(self._sleep_s)
        is_right = action.strip(" \r\n\t.").lower() == self._word()
        self._turn += 1
        self._num_said += is_right
        self._hash = _digest(self._hash + action.encode("utf-8", "surrogatepass"))
        return self.transition(
            "The gorge answers." if is_right else "Nothing answers.", reward=is_right / self._horizon
        )

    def transition(self, answer: str, *, reward: float) -> Transition:
        """The state as it is now."""
        is_over = self._turn >= self._horizon
        return Transition(
            observation=self._observation(answer),
            reward=reward,
            score=self._num_said / self._horizon,
            success=is_over and self._num_said == self._horizon,
            is_terminal=is_over,
            progress=self._num_said / self._horizon,
            state_hash=self._hash,
        )

    def _observation(self, answer: str) -> str:
        text = f"{answer} Turn {self._turn} of {self._horizon}. Say {self._word()}. "
        missing = self._observation_bytes - len(text)
        return (
            text[: self._observation_bytes]
            if missing <= 0
            else text + (_FILLER * (missing // len(_FILLER) + 1))[:missing]
        )

    def _word(self) -> str:
        return _WORDS[self._hash[0] % len(_WORDS)]

    @classmethod
    def _info(cls, split: str, index: int) -> TaskInfo:
        name = cls.spec.name
        return TaskInfo(task_id=f"{name}/{split}/{index:06d}", split=split, kind=name, score_max=1.0)


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()
