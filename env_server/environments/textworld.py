"""TextWorld games as an environment: coin collector, treasure hunter, cooking, simple and command-list quests.

Games are generated on demand into a cache (`LONGTURN_CACHE`) and played by a Z-machine in the worker process. The task
id alone fixes the game and its play; the episode's seed changes nothing.

An action is invalid where it is refused before the interpreter (characters outside the whitelist, several commands,
meta-commands), where the parser takes no turn for it (unknown verb or thing, unclear reference, question back), and
where it says "You can't go that way." Other commands without effect (a locked door, an open chest opened) are valid.
"""

import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from env_server.environment import (
    Determinism,
    EnvironmentBrokenError,
    EnvironmentSpec,
    KnobValue,
    TaskInfo,
    Transition,
    switch,
)
from env_server.environments.episodes import Episode, EpisodicEnvironment
from env_server.environments.textworld_cache import GameCache, GameEntry, GameFacts, default_cache_root
from env_server.environments.textworld_guide import Guide, RoomGuide, WalkthroughGuide
from env_server.environments.textworld_tasks import (
    GENERATOR_VERSION,
    SPLITS,
    TEXTWORLD_VERSION,
    TextWorldTask,
    list_tasks,
    num_tasks,
    parse_task_id,
)
from env_server.text import plain_command
from longturn.extras import how_to_install

if TYPE_CHECKING:
    from env_server.environments.textworld_interpreter import Reply
    from env_server.environments.textworld_tracking import LogicTracker

MAX_ACTION_CHARS = 198
"""What the interpreter's input buffer takes."""

NOT_PLAIN = f"Give one command of at most {MAX_ACTION_CHARS} letters, digits, spaces, hyphens and apostrophes."
NOT_HERE = "That command cannot be used here."
_NO_WAY = "You can't go that way."

# Out of the world: they end, rewind, record or re-configure the interpreter, or show what an agent may not see. The
# game's dictionary knows a word by its first nine characters.
# fmt: off
_META_COMMANDS = frozenset({
    "again", "brief", "full", "fullscore", "long", "no", "normal", "notify", "nouns", "oops", "option",
    "pronouns", "prompt", "q", "quit", "record", "recording", "replay", "restart", "restore", "restrict",
    "save", "score", "script", "short", "superbrie", "supertran", "transcrip", "undo", "unscript", "verbose",
    "verify", "version", "y", "yes", "enable", "disable", "g", "o",
})
# fmt: on
_WORD_CHARS = 9


KNOBS = (
    switch("show_objective", "begin with the game's own introduction, which often spells the solution"),
    switch("admissible_actions", "list the admissible commands; 5-50 ms a turn"),
    switch("facts", "extra `facts`: the state of the world, one statement a line; 5-50 ms a turn"),
    switch("inventory", "extra `inventory`; under 1 ms a turn"),
    switch("description", "extra `description` of the room; about 1-10 ms a turn"),
    switch("policy_commands", "extra `policy_commands`, also the oracle's and progress's source; 10-500 ms a turn"),
)


class TextWorldEnvironment(EpisodicEnvironment):
    """One TextWorld game at a time."""

    spec = EnvironmentSpec(
        name="textworld",
        version=f"{TEXTWORLD_VERSION}+{GENERATOR_VERSION}",
        data_hash=f"textworld-{TEXTWORLD_VERSION}-generator-{GENERATOR_VERSION}",
        action_format="One English command, such as: go north, take coin, open chest, put apple on table.",
        max_turns=100,
        knobs=KNOBS,
        determinism=Determinism.EXACT,
        is_forkable=True,
        is_thread_safe=False,
        score_min=0.0,
        score_max=100.0,
        splits=SPLITS,
        has_oracle=True,
        has_progress=True,
        licence="MIT (textworld), GPL-2.0-or-later (jericho, the interpreter)",
        description="Generated text adventures. Task ids are FAMILY/PARAMETERS/SPLIT/INDEX; list filters are `family` "
        "and the family's parameters (level; recipe, take, go, open, cook, cut, drop; rewards, goal; length, rooms).",
    )

    @classmethod
    def num_tasks(cls, split: str, filters: Mapping[str, str] | None = None) -> int:
        return num_tasks(split, filters or {})

    @classmethod
    def tasks(
        cls, split: str, start: int = 0, count: int = 100, filters: Mapping[str, str] | None = None
    ) -> Sequence[TaskInfo]:
        return list_tasks(split, start, count, filters or {})

    @classmethod
    def task(cls, task_id: str) -> TaskInfo:
        return parse_task_id(task_id).info

    @classmethod
    def prepare(cls, task_id: str, knobs: Mapping[str, KnobValue], seed: int) -> None:
        """Generate the game into the cache: 0.7 s for coin collector on a quiet core, 1-10 s for big treasure hunts."""
        _obtain(parse_task_id(task_id))

    @classmethod
    def warm_up(cls) -> None:
        """Import the interpreter and TextWorld, whose import parses a grammar: seconds, and no work for two threads."""
        try:
            for module in ("textworld_interpreter", "textworld_tracking"):
                import_module(f"env_server.environments.{module}")
        except ModuleNotFoundError as error:
            raise EnvironmentBrokenError(f"{error}; {how_to_install('server-textworld')}") from error

    def reset(self, task_id: str, seed: int, knobs: Mapping[str, KnobValue]) -> Transition:
        """Start the task's game; generates it first where `prepare` has not."""
        task = parse_task_id(task_id)
        resolved = self.spec.resolve_knobs(knobs)
        self.close()
        self._episode = episode = _Episode(_obtain(task), resolved)
        return episode.start()


class _Episode(Episode):
    """A game from its first observation to its end."""

    def __init__(self, entry: GameEntry, knobs: Mapping[str, KnobValue]) -> None:
        from env_server.environments.textworld_interpreter import Interpreter

        self._facts = entry.facts
        self._knobs = knobs
        self._guide = _make_guide(entry.facts)
        needs_logic = bool(knobs["admissible_actions"] or knobs["facts"] or knobs["policy_commands"])
        infos = tuple(name for name in ("inventory", "description") if knobs[name])
        self._interpreter = Interpreter(entry.story, infos=infos, is_traced=needs_logic)
        self._tracker: LogicTracker | None = self._make_tracker(entry.logic) if needs_logic else None
        self._policy: tuple[str, ...] | None = None
        self._policy_length = 0
        self._score = 0.0
        self._is_over = False
        self._infos: dict[str, str] = {}

    def start(self) -> Transition:
        reply = self._interpreter.start()
        introduction = self._facts.objective if self._knobs["show_objective"] else self._facts.goal
        text = f"{introduction}\n\n{reply.text}" if introduction else reply.text
        self._infos |= reply.infos
        self._update_policy()
        self._policy_length = max(1, len(self._policy or ()))
        return self._transition(text)

    def step(self, action: str) -> Transition:
        if self._is_over:
            raise RuntimeError("step after the end of the game")
        command = plain_command(action, max_chars=MAX_ACTION_CHARS)
        if command is None:
            return self._transition(NOT_PLAIN, is_valid=False)
        if self._is_refused(command.lower().split()):
            return self._transition(NOT_HERE, is_valid=False)
        return self._apply(command)

    def oracle(self) -> str | None:
        """The expert's next command.

        Coin collector: known in every room. Others: on the walkthrough, after moves off it and after commands that only
        look; None once any other command took a turn, unless the knob `policy_commands` is set.
        """
        if self._is_over:
            return None
        if self._knobs["policy_commands"]:
            return self._policy[0] if self._policy else None
        return self._guide.next_command()

    def _apply(self, command: str) -> Transition:
        reply = self._interpreter.send(command)
        before = self._score
        self._note(command, reply)
        return self._transition(
            reply.text,
            reward=self._score - before,
            is_won=reply.is_won,
            is_valid=reply.has_turn_passed and not reply.text.startswith(_NO_WAY),
        )

    def _note(self, command: str, reply: "Reply") -> None:
        self._is_over = reply.is_won or reply.is_lost
        self._score = self._score if reply.score is None else float(reply.score)
        self._infos |= reply.infos
        if reply.has_turn_passed:
            self._guide.follow(command, reply.room)
        if self._tracker is not None:
            self._tracker.follow(reply.events)
            self._update_policy()

    def _transition(
        self, text: str, *, reward: float = 0.0, is_won: bool = False, is_valid: bool = True
    ) -> Transition:  # fmt: skip
        lists_actions = self._tracker is not None and self._knobs["admissible_actions"]
        return Transition(
            observation=text,
            reward=reward,
            score=self._score,
            success=is_won,
            is_terminal=self._is_over,
            action_valid=is_valid,
            progress=1.0 if is_won else self._progress(),
            admissible_actions=self._tracker.admissible_commands() if self._tracker and lists_actions else None,
            extras=self._extras(),
            state_hash=self._interpreter.state_hash(text),
        )

    def _progress(self) -> float | None:
        if self._knobs["policy_commands"]:
            return None if self._policy is None else max(0.0, 1.0 - len(self._policy) / self._policy_length)
        return self._guide.progress()

    def _extras(self) -> dict[str, str]:
        extras = dict(self._infos)
        if self._tracker is not None and self._knobs["facts"]:
            extras["facts"] = "\n".join(self._tracker.facts())
        if self._policy is not None:
            extras["policy_commands"] = "\n".join(self._policy)
        return extras

    def _update_policy(self) -> None:
        if self._tracker is not None and self._knobs["policy_commands"]:
            self._policy = self._tracker.policy()

    def _is_refused(self, words: Sequence[str]) -> bool:
        verb = words[0]
        shows_objective = bool(self._knobs["show_objective"])
        return (
            verb[:_WORD_CHARS] in _META_COMMANDS
            or verb.startswith("tw-")
            or "then" in words  # the parser's word for "and now another command"
            or (verb == "goal" and not shows_objective)
        )

    def _make_tracker(self, logic: Path) -> "LogicTracker":
        from env_server.environments.textworld_tracking import LogicTracker

        return LogicTracker(logic, tracks_policy=bool(self._knobs["policy_commands"]))


def _make_guide(facts: GameFacts) -> Guide:
    """Exact on the rooms where taking one thing is all there is to do and no door is in the way."""
    *moves, last = facts.walkthrough or ("",)
    if last == "take coin" and all(move.startswith("go ") for move in moves):
        target = facts.start
        for move in moves:
            target = facts.exits[target][move.removeprefix("go ")]
        return RoomGuide(exits=facts.exits, start=facts.start, target=target, last_command=last)
    return WalkthroughGuide(walkthrough=facts.walkthrough, exits=facts.exits, start=facts.start)


def _obtain(task: TextWorldTask) -> GameEntry:
    return GameCache(default_cache_root(os.environ)).obtain(task, _generate)


def _generate(task: TextWorldTask, folder: Path) -> GameFacts:
    from env_server.environments.textworld_generator import generate_game  # seconds of imports, only to make a game

    return generate_game(task, folder)
