"""Data sets of reasoning-gym behind this project's protocol: a question, an answer, and the package's own score.

A task is a position of the data set, which fixes the question; the episode's seed changes nothing. reasoning-gym adds
seed and position, so the splits' seeds lie apart by more than any split is long.

Some data sets read an answer by evaluating it as Python. An answer comes from whoever plays, so such a data set is
refused unless the server is told `--insecure-sandbox`.
"""

import inspect
import os
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from env_server.environment import (
    Determinism,
    EnvironmentBrokenError,
    EnvironmentSpec,
    KnobSpec,
    KnobValue,
    Transition,
)
from env_server.environments.adapted import SIZES, AdaptedEnvironment, first_seed, table_of
from env_server.environments.digests import state_hash
from env_server.environments.episodes import Episode
from env_server.sandbox.isolation import INSECURE_VARIABLE
from longturn.extras import how_to_install
from longturn.nearest import nearest_hint

VERSION = "0.1.25"
EXTRA = "server-reasoning-gym"
MAX_ACTION_CHARS = 16_384
NO_ANSWER = f"That cannot be read as an answer, which has 1 to {MAX_ACTION_CHARS} characters."
_EVALUATES = re.compile(r"\b(eval|exec|parse_expr|sympify)\(")
_READ_AND_HARMLESS = frozenset(
    {"basic_arithmetic", "bitwise_arithmetic", "codeio", "number_sorting", "propositional_logic"}
)
"""Modules of this version that evaluate what they generated themselves, never an answer."""
_NO_CONFIG: Mapping[str, object] = MappingProxyType({})

KNOBS = (KnobSpec(name="tries", kind="int", default=1, minimum=1, maximum=20, description="answers that may be given"),)


class ReasoningGymEnvironment(AdaptedEnvironment):
    """One question at a time of the data set that a subclass names."""

    data_sets: ClassVar[Mapping[str, Any]]
    """By split."""

    def reset(self, task_id: str, seed: int, knobs: Mapping[str, KnobValue]) -> Transition:
        key = self.table.find(task_id)
        resolved = self.spec.resolve_knobs(knobs)
        data_set = self.data_sets[key.split]
        self._episode = episode = _Episode(data_set, data_set[key.index], num_tries=int(resolved["tries"]))
        return episode.start()


class _Episode(Episode):
    """A question from being asked to its last answer."""

    def __init__(self, data_set: Any, entry: Mapping[str, Any], *, num_tries: int) -> None:
        self._data_set, self._entry = data_set, entry
        self._num_left = num_tries
        self._score = 0.0
        self._hash = b""

    @property
    def _is_over(self) -> bool:
        return self._score >= 1.0 or self._num_left == 0

    def start(self) -> Transition:
        return self._transition(str(self._entry["question"]))

    def step(self, action: str) -> Transition:
        if self._is_over:
            raise RuntimeError("step after the end of the episode")
        answer, before = action.strip(), self._score
        scored = self._scored(answer) if 0 < len(answer) <= MAX_ACTION_CHARS else None
        if scored is None:
            return self._transition(NO_ANSWER, action=action, is_valid=False)
        self._score = max(before, scored)
        self._num_left -= 1
        said = "Right." if self._score >= 1.0 else f"Not right. Answers left: {self._num_left}."
        return self._transition(said, action=action, reward=self._score - before)

    def oracle(self) -> str | None:
        """The package's answer; None of the data sets that give none."""
        answer = self._entry["answer"]
        return None if self._is_over or answer is None else str(answer)

    def _scored(self, answer: str) -> float | None:
        """The package's score; None where it cannot read the answer."""
        try:
            return min(1.0, max(0.0, float(self._data_set.score_answer(answer, self._entry))))
        except Exception:  # noqa: BLE001 - a hundred scorers raise what they like at a text that they cannot read
            return None

    def _transition(self, text: str, *, action: str = "", reward: float = 0.0, is_valid: bool = True) -> Transition:
        self._hash = state_hash(self._hash.hex(), action, text, self._score, self._num_left)
        return Transition(
            observation=text,
            reward=reward,
            score=self._score,
            success=self._score >= 1.0,
            is_terminal=self._is_over,
            action_valid=is_valid,
            state_hash=self._hash,
        )


def reasoning_gym_environment(
    data_set: str, name: str = "", config: Mapping[str, object] = _NO_CONFIG
) -> type[ReasoningGymEnvironment]:
    """The class that asks a data set's questions; a server's `reasoning_gym:NAME`. `config`: the package's settings.

    An entry point of one's own may be its result, under a name of its own. Raises `EnvironmentBrokenError`.
    """
    try:
        import reasoning_gym  # pyright: ignore[reportMissingImports]  # an optional extra
        from reasoning_gym.factory import DATASETS  # pyright: ignore[reportMissingImports]  # an optional extra
    except ModuleNotFoundError as error:
        raise EnvironmentBrokenError(f"{error}; {how_to_install(EXTRA)}") from error
    if data_set not in DATASETS:
        raise EnvironmentBrokenError(f"reasoning-gym has no data set {data_set!r}{nearest_hint(data_set, DATASETS)}")
    _refuse_evaluation(data_set, DATASETS[data_set][0])
    made = {
        split: reasoning_gym.create_dataset(data_set, seed=first_seed(split), size=size, **config)
        for split, size in SIZES.items()
    }
    settings = "".join(f", {key}={value}" for key, value in sorted(config.items()))
    spec = EnvironmentSpec(
        name=name or f"reasoning_gym:{data_set}",
        version=f"{VERSION}+1",
        data_hash=f"reasoning-gym-{VERSION}-{data_set}{settings}",
        action_format="The answer alone.",
        max_turns=20,
        knobs=KNOBS,
        determinism=Determinism.EXACT,
        is_forkable=True,
        splits=tuple(SIZES),
        has_oracle=True,
        licence="Apache-2.0",
        description=f"Questions of reasoning-gym's {data_set}{settings}. Success is the package's whole score.",
    )
    parts = {"__doc__": spec.description, "spec": spec, "data_sets": made, "table": table_of(spec.name, data_set)}
    return type("ReasoningGymEnvironment", (ReasoningGymEnvironment,), parts)


def _refuse_evaluation(data_set: str, scorer: type) -> None:
    """Raise `EnvironmentBrokenError` where an answer may be run as code and nobody said that it may."""
    source = inspect.getsource(inspect.getmodule(scorer) or scorer)
    if data_set in _READ_AND_HARMLESS or not _EVALUATES.search(source) or os.environ.get(INSECURE_VARIABLE) == "1":
        return
    raise EnvironmentBrokenError(
        f"reasoning-gym reads answers of {data_set} by evaluating them as Python; serve with --insecure-sandbox "
        "(env_server.insecure_sandbox = true) if every answer that will come is harmless"
    )
