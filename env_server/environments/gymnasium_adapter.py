"""Environments of Gymnasium that can be played in text, behind this project's protocol.

What is seen is text: the observation where it is a string, else what the environment draws in its render mode `ansi`,
with colours in words, since they say where the player stands: `[S red]FFF`.
An action is a text, or one of a row of numbers. Gymnasium knows no goal test: an episode is won where the last `info`
says so under `success` or `is_success`, or, where it says nothing, where the task ended with a reward above 0.

A task is a seed of Gymnasium's `reset`; the episode's own seed changes nothing.
"""

import re
from collections.abc import Mapping
from importlib import import_module
from typing import Any, ClassVar

from env_server.environment import (
    Determinism,
    EnvironmentBrokenError,
    EnvironmentSpec,
    KnobValue,
    Transition,
    switch,
)
from env_server.environments.adapted import SIZES, AdaptedEnvironment, seed_of, table_of
from env_server.environments.digests import state_hash
from env_server.environments.episodes import Episode
from longturn.extras import how_to_install
from longturn.nearest import nearest_hint

MAX_ACTION_CHARS = 4096
NO_ACTION = "That is no action here."
UNBOUNDED = 1e9
"""Gymnasium states no range of returns."""
DEFAULT_MAX_TURNS = 100
_COLOUR_CODE = re.compile(r"\x1b\[([0-9;]*)m")
_COLOURS = ("gray", "red", "green", "yellow", "blue", "magenta", "cyan", "white", "crimson")
"""By the last digit of their code, as Gymnasium draws them."""
_SUCCESS = ("success", "is_success")


class GymnasiumInterface:
    """How a registered environment is made, and how its texts and actions are read."""

    def __init__(self, env_id: str) -> None:
        """Make it once to look at it; raise `EnvironmentBrokenError` where it cannot be played in text."""
        try:
            import gymnasium
        except ModuleNotFoundError as error:
            raise EnvironmentBrokenError(f"{error}; {how_to_install('gymnasium')}") from error
        module, _, self.env_id = env_id.rpartition(":")
        self._make = gymnasium.make
        try:
            if module:
                import_module(module)
            self.registered: Any = gymnasium.spec(self.env_id)
        except (gymnasium.error.Error, ModuleNotFoundError) as error:
            hint = nearest_hint(env_id, gymnasium.registry)
            raise EnvironmentBrokenError(f"Gymnasium has no environment {env_id!r}{hint}: {error}") from error
        self.version = f"{gymnasium.__version__}+1"
        self._options: dict[str, str] = {}
        made = self.make()
        if not isinstance(made.reset(seed=0)[0], str):
            if "ansi" not in (made.metadata.get("render_modes") or ()):
                raise EnvironmentBrokenError(f"{env_id} shows {made.observation_space}: no text, nor drawn as text")
            self._options = {"render_mode": "ansi"}
        self._actions: Any = made.action_space
        made.close()
        self.has_numbers = isinstance(self._actions, gymnasium.spaces.Discrete)
        if not self.has_numbers and not self._actions.contains("look"):
            raise EnvironmentBrokenError(f"{env_id} takes {self._actions}: neither texts nor numbers")

    @property
    def action_format(self) -> str:
        """One line for prompts."""
        if not self.has_numbers:
            return "A text."
        return f"A number from {self._actions.start} to {self._actions.start + self._actions.n - 1}."

    def make(self) -> Any:
        """An instance without a turn limit: the server counts turns."""
        return self._make(self.env_id, max_episode_steps=-1, disable_env_checker=True, **self._options)

    def text(self, made: Any, observation: Any) -> str:
        """What is seen."""
        return observation if isinstance(observation, str) else spelled_colours(str(made.render())).strip("\n")

    def action(self, text: str) -> Any:
        """What Gymnasium takes for a text; None where that is none of its actions."""
        if not self.has_numbers:
            return text if len(text) <= MAX_ACTION_CHARS and self._actions.contains(text) else None
        word = text.strip(" \t\r\n.")
        number = int(word) if word.isascii() and word.isdigit() and len(word) < 9 else -1
        return number if self._actions.contains(number) else None

    def admissible(self, info: Mapping[str, Any]) -> tuple[str, ...] | None:
        """The numbers that can be given, those that the environment's own mask lets through; None of texts."""
        if not self.has_numbers:
            return None
        mask = info.get("action_mask", [1] * int(self._actions.n))
        return tuple(str(self._actions.start + index) for index, is_let in enumerate(mask) if is_let)


def spelled_colours(drawn: str) -> str:
    """A drawing for a terminal with `[TEXT COLOUR]` for text in a colour."""
    open_colours: list[str] = []

    def spelled(code: re.Match[str]) -> str:
        numbers = [int(number) for number in code[1].split(";") if number]
        named = [number % 10 for number in numbers if 30 <= number <= 48]
        if named:
            open_colours.append(_COLOURS[min(named[0], 8)])
            return "["
        return f" {open_colours.pop()}]" if open_colours and not any(numbers) else ""

    return _COLOUR_CODE.sub(spelled, drawn)


class GymnasiumEnvironment(AdaptedEnvironment):
    """One episode at a time of the Gymnasium environment that a subclass names."""

    interface: ClassVar[GymnasiumInterface]

    def reset(self, task_id: str, seed: int, knobs: Mapping[str, KnobValue]) -> Transition:
        key = self.table.find(task_id)
        resolved = self.spec.resolve_knobs(knobs)
        self.close()
        self._episode = episode = _Episode(self.interface, resolved)
        return episode.start(seed_of(key))


class _Episode(Episode):
    """An instance from its reset to its end."""

    def __init__(self, interface: GymnasiumInterface, knobs: Mapping[str, KnobValue]) -> None:
        self._interface = interface
        self._lists_actions = bool(knobs["admissible_actions"])
        self._made: Any = interface.make()
        self._hash = b""
        self._score = 0.0
        self._is_over = self._is_won = False
        self._info: Mapping[str, Any] = {}

    def start(self, seed: int) -> Transition:
        observation, self._info = self._made.reset(seed=seed)
        return self._transition(self._interface.text(self._made, observation), action=str(seed))

    def step(self, action: str) -> Transition:
        if self._is_over:
            raise RuntimeError("step after the end of the episode")
        taken = self._interface.action(action)
        if taken is None:
            return self._transition(f"{NO_ACTION} {self._interface.action_format}", action=action, is_valid=False)
        observation, reward, is_terminated, is_truncated, self._info = self._made.step(taken)
        self._score += float(reward)
        self._is_over = bool(is_terminated or is_truncated)
        said = next((self._info[name] for name in _SUCCESS if name in self._info), is_terminated and reward > 0)
        self._is_won = self._is_over and bool(said)
        return self._transition(self._interface.text(self._made, observation), reward=float(reward), action=action)

    def oracle(self) -> str | None:
        """Gymnasium knows no expert."""
        return None

    def close(self) -> None:
        self._made.close()

    def _transition(self, text: str, *, action: str, reward: float = 0.0, is_valid: bool = True) -> Transition:
        self._hash = state_hash(self._hash.hex(), action, text, reward, self._is_over)
        return Transition(
            observation=text,
            reward=reward,
            score=self._score,
            success=self._is_won,
            is_terminal=self._is_over,
            action_valid=is_valid,
            admissible_actions=self._interface.admissible(self._info) if self._lists_actions else None,
            state_hash=self._hash,
        )


def gymnasium_environment(env_id: str, name: str = "") -> type[GymnasiumEnvironment]:
    """The class that plays an environment, named as registered or as `module:id`; `gymnasium:ID` of a server.

    An entry point of one's own may be its result, under a name of its own. Raises `EnvironmentBrokenError`.
    """
    interface = GymnasiumInterface(env_id)
    registered = interface.registered
    spec = EnvironmentSpec(
        name=name or f"gymnasium:{env_id}",
        version=interface.version,
        data_hash=f"gymnasium-{interface.version}-{env_id}",
        action_format=interface.action_format,
        max_turns=registered.max_episode_steps or DEFAULT_MAX_TURNS,
        knobs=(switch("admissible_actions", "list the numbers that can be given; no texts"),),
        determinism=Determinism.NONE if registered.nondeterministic else Determinism.EXACT,
        is_forkable=not registered.nondeterministic,
        score_min=-UNBOUNDED,
        score_max=UNBOUNDED,
        splits=tuple(SIZES),
        random_success_ceiling=1.0,
        licence="that of the environment's package",
        description=f"Gymnasium's {env_id}. The score is the return, for which Gymnasium states no range.",
    )
    parts = {
        "__doc__": spec.description,
        "spec": spec,
        "interface": interface,
        "table": table_of(spec.name, interface.env_id),
    }
    return type("GymnasiumEnvironment", (GymnasiumEnvironment,), parts)
