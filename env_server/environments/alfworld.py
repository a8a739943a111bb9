"""ALFWorld: household tasks in text, the published games and our own longer ones in the same format.

Games come from the folder that `ALFWORLD_DATA` names, and from a generator that needs no download. Each is translated
once into the cache and played by Fast Downward's state machine in the worker process; texts are derived by the game's
own grammar. The task id alone fixes a game and its play; the episode's seed changes nothing.

An action is invalid where no command that can be given now is meant by it ("Nothing happens."); it changes nothing and
is a step all the same. Success is the game's own goal test.
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, ClassVar

from env_server.environment import (
    Determinism,
    EnvironmentBrokenError,
    EnvironmentSpec,
    KnobSpec,
    KnobValue,
    TaskInfo,
    Transition,
    switch,
)
from env_server.environments.alfworld_files import DATA_VARIABLE, SPLITS, FileEntry, load_game, open_index
from env_server.environments.alfworld_generator import GENERATOR_VERSION, generated_game, package_data
from env_server.environments.alfworld_tasks import Catalogue
from env_server.environments.alfworld_translation import TRANSLATION_VERSION, Game, Translation, obtain_translation
from env_server.environments.episodes import EpisodicEnvironment
from longturn.extras import how_to_install

if TYPE_CHECKING:
    from env_server.environments.alfworld_episode import PlayableGame

ALFWORLD_VERSION = "0.4.2"
MAX_TURNS = 100

KNOBS = (
    KnobSpec(
        name="matching",
        kind="choice",
        default="exact",
        choices=("exact", "forgiving"),
        description="which actions are understood: commands as ALFWorld spells them, or also other cases, articles, "
        "older verbs (put X in/on Y) and nouns without their number where only one command fits",
    ),
    KnobSpec(
        name="expert",
        kind="choice",
        default="walkthrough",
        choices=("walkthrough", "handcoded"),
        description="the oracle: the shortest way, known beforehand and found again after any detour; or an explorer "
        "that knows only what the episode has shown",
    ),
    switch("admissible_actions", "list the commands that can be given; under 1 ms a turn"),
    switch("facts", "extra `facts`: what is true in the room, one statement a line; about 2 ms a turn"),
)
_OWN_HASH = f"alfworld-{ALFWORLD_VERSION}-generator-{GENERATOR_VERSION}"
_SPEC = EnvironmentSpec(
    name="alfworld",
    version=f"{ALFWORLD_VERSION}+{GENERATOR_VERSION}.{TRANSLATION_VERSION}",
    data_hash=_OWN_HASH,
    action_format="One command: go to desk 1, open drawer 2, take mug 1 from desk 1, move mug 1 to shelf 1, clean/heat/"
    "cool mug 1 with sinkbasin/microwave/fridge 1, use desklamp 1, examine mug 1, look, inventory.",
    max_turns=MAX_TURNS,
    knobs=KNOBS,
    determinism=Determinism.EXACT,
    is_forkable=True,
    splits=SPLITS,
    has_oracle=True,
    has_progress=True,
    licence="MIT (alfworld, its games), GPL-3.0 (fast-downward, the simulator); generated games: Apache-2.0",
    description="Household tasks in one room. Ids are generated/goals=N/SPLIT/INDEX and, with "
    f"{DATA_VARIABLE} set in the server's environment, file/SPLIT/TASK/TRIAL for ALFWorld's own games; valid_seen is "
    "in distribution, valid_unseen out of it. List filters: source (file, generated), type, goals.",
)


class AlfworldEnvironment(EpisodicEnvironment):
    """One ALFWorld game at a time."""

    spec: ClassVar[EnvironmentSpec] = _SPEC

    @classmethod
    def num_tasks(cls, split: str, filters: Mapping[str, str] | None = None) -> int:
        return _catalogue().num_tasks(split, filters or {})

    @classmethod
    def tasks(
        cls, split: str, start: int = 0, count: int = 100, filters: Mapping[str, str] | None = None
    ) -> Sequence[TaskInfo]:
        return _catalogue().tasks(split, start, count, filters or {})

    @classmethod
    def task(cls, task_id: str) -> TaskInfo:
        return _catalogue().find(task_id).info

    @classmethod
    def prepare(cls, task_id: str, knobs: Mapping[str, KnobValue], seed: int) -> None:
        """Generate the game where it is ours, and translate it into the cache: 0.4 to 4 s."""
        _translated(task_id)

    @classmethod
    def warm_up(cls) -> None:
        """Import the simulator, index the files, and name them in the spec."""
        try:
            package_data()
            for module in ("textworld.envs.pddl.logic", "env_server.environments.alfworld_episode"):
                import_module(module)
        except ModuleNotFoundError as error:
            raise EnvironmentBrokenError(f"{error}; {how_to_install('server-alfworld')}") from error
        files = _catalogue().files
        left_out = f" {len(files.quarantined)} game files are left out; the log says why." if files.quarantined else ""
        cls.spec = dataclasses.replace(
            _SPEC,
            data_hash=f"{_OWN_HASH}-files-{files.data_hash}" if files.data_hash else _OWN_HASH,
            description=_SPEC.description + left_out,
        )

    def reset(self, task_id: str, seed: int, knobs: Mapping[str, KnobValue]) -> Transition:
        """Start the task's game; translates it first where `prepare` has not."""
        from env_server.environments.alfworld_episode import AlfworldEpisode

        resolved = self.spec.resolve_knobs(knobs)
        playable = _playable(task_id, os.environ.get(DATA_VARIABLE, ""))
        self.close()
        self._episode = episode = AlfworldEpisode(playable, resolved)
        return episode.start()


def _catalogue() -> Catalogue:
    return Catalogue(open_index(os.environ.get(DATA_VARIABLE, "")))


def _game(task_id: str) -> Game:
    found = _catalogue().find(task_id)
    if isinstance(found, FileEntry):
        return load_game(found)
    try:
        return generated_game(task_id, found.split, int(found.knobs["goals"]))
    except ModuleNotFoundError as error:
        raise EnvironmentBrokenError(f"{error}; {how_to_install('server-alfworld')}") from error


def _translated(task_id: str) -> tuple[Game, Translation]:
    game = _game(task_id)
    try:
        return game, obtain_translation(game)
    except EnvironmentBrokenError as error:
        raise EnvironmentBrokenError(f"{task_id}: {error}") from error


@lru_cache(maxsize=16)
def _playable(task_id: str, data: str) -> "PlayableGame":
    """What the episodes of a game share. A group plays one game, so a few are enough; `data` is part of the key."""
    from env_server.environments.alfworld_episode import PlayableGame

    del data
    return PlayableGame(*_translated(task_id))
