"""Generates one TextWorld game, about five times as fast as `tw-make` and equal to it.

Upstream compiles and plays a throw-away copy of every game only to annotate its quests, and parses the same grammar for
every game. Inside `fast_generation` both are replaced in this process; the package's files stay as they are. So is its
way to start the compilers: Inform writes an index and telemetry into the home folder, where two of them would race.
"""

# Upstream's annotations are wrong in places (one entity where it says a list, str where it means any setting).
# pyright: reportArgumentType=false, reportOptionalSubscript=false, reportReturnType=false, reportOptionalMemberAccess=false
# pyright: reportAttributeAccessIssue=false, reportUnnecessaryComparison=false

import os
import subprocess
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

import textworld
from textworld import Game, GameMaker, GameOptions
from textworld.challenges.tw_coin_collector import coin_collector
from textworld.challenges.tw_cooking import cooking
from textworld.challenges.tw_simple import simple
from textworld.challenges.tw_treasure_hunter import treasure_hunter
from textworld.generator import GenerationWarning, QuestGenerationError, compile_game
from textworld.generator.data import KnowledgeBase
from textworld.generator.inform7 import CouldNotCompileGameError, Inform7Game, world2inform7
from textworld.logic import Action, State

from env_server.environment import EnvironmentBrokenError, KnobValue
from env_server.environments.generated_tasks import split_of_layout
from env_server.environments.textworld_cache import LOGIC, STORY, GameFacts
from env_server.environments.textworld_layouts import layout_key
from env_server.environments.textworld_quests import build_quest, plan_quest
from env_server.environments.textworld_tasks import TEXTWORLD_VERSION, TextWorldTask
from longturn.extras import how_to_install

_MAX_ATTEMPTS = 200
_SERIAL_AT = 0x12
_SERIAL = b"000000"

_lock = threading.Lock()
_grammars: dict[tuple[object, ...], KnowledgeBase] = {}
_load_grammar: Callable[..., KnowledgeBase] = KnowledgeBase.load


def generate_game(task: TextWorldTask, folder: Path) -> GameFacts:
    """Write `game.z8` and `game.json` into the empty folder. Raises `EnvironmentBrokenError`."""
    installed = metadata.version("textworld")
    if installed != TEXTWORLD_VERSION:
        raise EnvironmentBrokenError(
            f"textworld {installed} is installed, these tasks are those of {TEXTWORLD_VERSION}: "
            f"{how_to_install('server-textworld')}"
        )
    with _lock, fast_generation(folder):
        game, layout = make_in_split(task)
        _compile(game, folder)
    return _facts(task, game, layout)


def annotate_quests(maker: GameMaker, commands: Sequence[str]) -> None:
    """What `GameMaker.set_walkthrough` does, without a Z-machine: give each event the commands that trigger it."""
    game: Game = maker.build(validate=False)
    inform = Inform7Game(game)
    state = game.world.state.copy()
    pending = [event for quest in maker.quests for event in quest.win_events if not event.is_triggering(state)]
    actions: list[Action | None] = []
    for position, action in enumerate(_replay(commands, state, inform)):
        actions.append(action or (actions[-1] if actions else None))  # upstream repeats the last one too
        for event in [event for event in pending if event.is_triggering(state)]:
            event.actions, event.commands = actions, commands[: position + 1]
            pending.remove(event)


def make_in_split(task: TextWorldTask) -> tuple[Game, str]:
    """The first attempt whose layout belongs to the task's split and that upstream can solve."""
    for attempt in range(_MAX_ATTEMPTS):
        seeds = task.seeds(attempt)
        layout = layout_key(task.family.name, task.parameters, seeds)
        if layout and split_of_layout(layout) != task.split:
            continue
        try:
            return _make(task, seeds), layout
        except QuestGenerationError:
            continue  # upstream's word for "this map has no quest of that length": draw another map
    raise EnvironmentBrokenError(f"no game of {task.task_id} was found in {_MAX_ATTEMPTS} attempts")


def _make(task: TextWorldTask, seeds: Mapping[str, int]) -> Game:
    options = GameOptions()
    options.seeds = dict(seeds)
    textworld.g_rng.set_seed(seeds["map"] % 65_536)  # for draws that upstream does not take from the options
    values = task.parameters
    match task.family.name:
        case "coin_collector":
            return coin_collector.make({"level": values["level"]}, options)
        case "treasure_hunter":
            return treasure_hunter.make({"level": values["level"]}, options)
        case "cooking":
            return _make_cooking(values, task.split, options)
        case "simple":
            return simple.make({**values, "test": task.split == "test"}, options)
        case _:
            plan = plan_quest(length=int(values["length"]), num_rooms=int(values["rooms"]), seeds=seeds)
            return build_quest(plan, options)


def _make_cooking(values: Mapping[str, KnobValue], split: str, options: GameOptions) -> Game:
    game = cooking.make({**values, "go": int(values["go"]), "recipe_seed": 0, "split": split}, options)
    for quest in game.quests:  # built from sets: their order would follow the process's hash seed
        quest.fail_events = sorted(quest.fail_events, key=lambda event: str(event.condition))
    return game


def _compile(game: Game, folder: Path) -> None:
    options = GameOptions()
    options.path = str(folder / STORY)
    options.force_recompile = True
    try:
        compile_game(game, options)
    except CouldNotCompileGameError as error:
        raise EnvironmentBrokenError(f"Inform could not compile the game: {error}") from error
    (folder / STORY).with_suffix(".ni").unlink()
    with (folder / STORY).open("r+b") as story:  # the compile date, so that a game made tomorrow is the same file
        story.seek(_SERIAL_AT)
        story.write(_SERIAL)
    if not (folder / LOGIC).is_file():
        raise EnvironmentBrokenError(f"TextWorld wrote no {LOGIC}")


def _facts(task: TextWorldTask, game: Game, layout: str) -> GameFacts:
    room_names = {entity.id: entity.name.lower() for entity in game.infos.values() if entity.type == "r"}
    exits: dict[str, dict[str, str]] = {name: {} for name in room_names.values()}
    if len(exits) != len(room_names):
        raise EnvironmentBrokenError(f"two rooms of {task.task_id} have the same name")
    for fact in game.world.facts:
        if fact.name.endswith("_of") and all(argument.type == "r" for argument in fact.arguments):
            there, here = (room_names[argument.name] for argument in fact.arguments)
            exits[here][fact.name.removesuffix("_of")] = there
    return GameFacts(
        walkthrough=_solution(game),
        objective=game.objective,
        goal=_goal(task, game),
        score_max=float(game.max_score),
        layout=layout,
        exits=exits,
        start=room_names[game.world.player_room.id],
    )


def _goal(task: TextWorldTask, game: Game) -> str:
    """What to achieve, never how."""
    match task.family.name:
        case "coin_collector":
            return ""
        case "treasure_hunter":
            thing = game.walkthrough[-1].removeprefix("take ").split(" from ")[0]
            return f"Your task: find the {thing} and take it. Take nothing else."
        case "simple" if task.parameters["goal"] == "none":
            return ""
        case "simple":
            return next(entity.desc for entity in game.infos.values() if entity.name == "note")
        case _:
            return game.objective


def _replay(commands: Sequence[str], state: State, inform: Inform7Game) -> Iterator[Action | None]:
    """Apply the commands to the state one by one; None for one that is not possible (upstream opens open doors)."""
    for command in commands:
        rules = [rule for name, rule in inform.kb.rules.items() if _may_give(inform.kb.inform7_commands[name], command)]
        candidates = list(state.all_applicable_actions(rules, inform.kb.types.constants_mapping))
        texts = inform.gen_commands_from_actions(candidates)
        matching = [action for action, text in zip(candidates, texts, strict=True) if text == command]
        action = max(matching, key=lambda action: len(action.preconditions), default=None)
        if action is not None:
            state.apply(action)
        yield action


def _may_give(template: str, command: str) -> bool:
    """Whether a rule's command, such as `take {o}`, may read like this one."""
    return template == command or ("{" in template and template.split()[0] == command.split()[0])


def _solution(game: Game) -> tuple[str, ...]:
    """Upstream's walkthrough without the commands that would do nothing."""
    commands: list[str] = game.walkthrough or []
    actions = _replay(commands, game.world.state.copy(), Inform7Game(game))
    return tuple(command for command, action in zip(commands, actions, strict=True) if action is not None)


class _Compilers:
    """Stands in for `subprocess` where TextWorld starts Inform: all that Inform writes stays in one folder.

    Inform 7 writes no index of the project (pages for its editor): that took three quarters of its time.
    """

    CalledProcessError = subprocess.CalledProcessError
    STDOUT = subprocess.STDOUT

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def check_output(self, command: list[str], *, stderr: int) -> bytes:
        compiler, *arguments = command
        if Path(compiler).name == "ni":
            arguments.insert(0, "-noindex")
        environment = {**os.environ, "HOME": "."}
        return subprocess.check_output([compiler, *arguments], stderr=stderr, cwd=self._folder, env=environment)


@contextmanager
def fast_generation(folder: Path) -> Iterator[None]:
    set_walkthrough = GameMaker.set_walkthrough
    GameMaker.set_walkthrough = annotate_quests
    KnowledgeBase.load = _load_grammar_once
    world2inform7.subprocess = _Compilers(folder)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GenerationWarning)  # "added an adjective to a room's name": nothing to mend
            yield
    finally:
        GameMaker.set_walkthrough = set_walkthrough
        KnowledgeBase.load = _load_grammar
        world2inform7.subprocess = subprocess


def _load_grammar_once(*args: object, **kwargs: object) -> KnowledgeBase:
    key = (*args, *sorted(kwargs.items()))
    if key not in _grammars:
        _grammars[key] = _load_grammar(*args, **kwargs)
    return _grammars[key]
