"""The words of a game: names of things, commands, and the answers that its grammar derives from the state.

Grammar and state are TextWorld's own; a game file's grammar holds Python expressions that TextWorld evaluates, so a
game file is code and only the operator of a server may choose one.
"""

# TextWorld has no annotations.
# pyright: reportUnknownArgumentType=false

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from textworld.generator.game import EntityInfo
from textworld.logic import Placeholder, Proposition, State, Type, Variable

from env_server.environments.alfworld_names import names_of
from env_server.environments.alfworld_simulator import Change
from env_server.environments.alfworld_translation import Translation
from env_server.environments.alfworld_world import Fact

if TYPE_CHECKING:
    from textworld.envs.pddl.logic import GameLogic

_TASK = re.compile(r'(?<="Your task is to: )[^"\\]*(?=")')
_NO_TASK = "UNKNOWN GOAL."
_WORD = re.compile(r"\w+")
_QUERY = re.compile(r"\|([^}\]]*)[}\]]")
_PREDICATE = re.compile(r"(\w+)\(")
# "[{r.name | receptacleatlocation(r:receptacle, lend:location)}]"
_NAME_IF = re.compile(r"\[\{(?P<name>\w+)\.name \| (?P<predicate>\w+)\((?P<arguments>[\w: ,]+)\)\}\]")


class Grammar:
    """The parsed grammar of a game; parsed once per process for all games that differ in their task alone."""

    def __init__(self, text: str) -> None:
        tasks = _TASK.findall(text)
        self._task = tasks[0] if len(tasks) == 1 else None
        shared = text if self._task is None else _TASK.sub(_NO_TASK, text)
        self.logic = _parsed(shared)

    def derive(self, symbol: str, context: Mapping[str, Any]) -> str:
        """The text of a symbol."""
        text = str(self.logic.grammar.derive(symbol, context))
        return text if self._task is None else text.replace(_NO_TASK, self._task.replace("\\n", "\n"))


@lru_cache(maxsize=8)
def _parsed(text: str) -> "GameLogic":
    from textworld.envs.pddl.logic import GameLogic  # imports the simulator, which is of an extra

    return GameLogic(domain="", grammar=text)


class FactState(State):
    """The facts of a game, as the grammar asks for them."""

    def __init__(self, logic: "GameLogic", translation: Translation) -> None:
        # Not the parent's constructor: it wants a logic of another kind, as TextWorld's own PDDL state notes.
        self._facts = defaultdict(set)
        self._vars_by_name = {}
        self._vars_by_type = defaultdict(set)
        self._var_counts = Counter()
        self._logic = logic
        for name, supertypes in translation.types:
            if name not in {known.name for known in logic.types}:
                logic.types.add(Type(name, supertypes))
        self._types = dict(translation.objects)
        self.add_facts(self._proposition(name, arguments) for name, arguments in translation.facts)
        self._changed: dict[Fact, bool] = {}

    def change(self, changes: Iterable[Change]) -> None:
        """Note what an action changed; what became false is a fact too, `not_` before its name."""
        for is_true, predicate, arguments in changes:
            positive = self._proposition(predicate, arguments)
            self._note((predicate, arguments), was_true=self.is_fact(positive), is_true=is_true)
            negative = positive.negate()
            gone, come = (negative, positive) if is_true else (positive, negative)
            if self.is_fact(gone):
                self.remove_fact(gone)
            if not self.is_fact(come):
                self.add_fact(come)

    def holds(self, fact: Fact) -> bool:
        """Whether a fact is true."""
        return self.is_fact(self._proposition(*fact))

    def changed(self) -> list[tuple[Fact, bool]]:
        """What is not as it was at the start, in order."""
        return sorted(self._changed.items())

    def true_facts(self) -> Iterable[Fact]:
        """Everything that is true."""
        for fact in self.facts:
            if not fact.name.startswith("not_"):
                yield fact.name, tuple(variable.name for variable in fact.arguments)

    def _note(self, fact: Fact, *, was_true: bool, is_true: bool) -> None:
        if was_true == is_true:
            return
        if self._changed.pop(fact, None) is None:
            self._changed[fact] = is_true

    def _proposition(self, predicate: str, arguments: Sequence[str]) -> Proposition:
        return Proposition(predicate, [Variable(name, self._types[name]) for name in arguments])


class Words:
    """Names, commands and answers of one game."""

    def __init__(self, grammar_text: str, translation: Translation) -> None:
        self._grammar = Grammar(grammar_text)
        self._translation = translation
        self._types = dict(translation.objects)
        self.names = names_of({name for _, arguments in translation.facts for name in arguments})
        self._infos = {name: self._info(name) for name in self.names}
        self._bare = {name: text.strip() for name, text in self.names.items()}
        self._placeholders = {
            action: [Placeholder(name, kind) for name, kind in parameters]
            for action, parameters in translation.parameters.items()
        }
        self._used = {action: self._used_parameters(action) for action in translation.parameters}
        self._commands: dict[tuple[str, ...], str] = {}

    @property
    def logic(self) -> "GameLogic":
        return self._grammar.logic

    def introduction(self, state: FactState) -> str:
        """The first text of the game."""
        return self._grammar.derive("#intro#", self._context(state, {}))

    def command(self, words: Sequence[str], state: FactState) -> str:
        """What an agent types for a ground action."""
        action, *arguments = words
        used = self._used[action]
        if used is None:
            return self._derive_command(action, arguments, state)
        key = (action, *(arguments[position] for position in used))
        if key not in self._commands:
            self._commands[key] = self._derive_command(action, arguments, state)
        return self._commands[key]

    def answer(self, words: Sequence[str], state: FactState) -> str:
        """What the game says to an action, given the state after it."""
        action, *arguments = words
        mapping = self._mapping(action, arguments)
        return self._grammar.derive(self.logic.actions[action].feedback_rule, self._context(state, mapping))

    def _derive_command(self, action: str, arguments: Sequence[str], state: FactState) -> str:
        mapping = self._mapping(action, arguments)
        given = {placeholder.name: self._bare[variable.name] for placeholder, variable in mapping.items()}
        template = self._without_sure_names(self.logic.actions[action].template, mapping, state)
        if "[" in template or "#" in template or "|" in template:
            template = self._grammar.derive(template, self._context(state, mapping))
        return template.format(**given).strip()

    def _without_sure_names(
        self, template: str, mapping: Mapping[Placeholder, Variable], state: FactState
    ) -> str:  # fmt: skip
        """The template with its queries after a known name, under a fact that holds, answered as the grammar would.

        The grammar parses a query anew each time, some milliseconds for each place that one can go to.
        """
        given = {placeholder.name: variable.name for placeholder, variable in mapping.items()}

        def answered(match: re.Match[str]) -> str:
            arguments = [word.split(":")[0].strip() for word in match["arguments"].split(",")]
            if not {match["name"], *arguments} <= set(given):
                return match[0]
            fact = match["predicate"], tuple(given[word] for word in arguments)
            return self._bare[given[match["name"]]] if state.holds(fact) else match[0]

        return _NAME_IF.sub(answered, template)

    def _used_parameters(self, action: str) -> list[int] | None:
        """Which arguments a command depends on; None where it depends on what may change."""
        template = self.logic.actions[action].template if action in self.logic.actions else ""
        asked = {name for query in _QUERY.findall(template) for name in _PREDICATE.findall(query)}
        if asked & {name.removeprefix("not_") for name in self._translation.fluents}:
            return None
        words = set(_WORD.findall(template))
        return [place for place, (name, _) in enumerate(self._translation.parameters[action]) if name in words]

    def _mapping(self, action: str, arguments: Sequence[str]) -> dict[Placeholder, Variable]:
        return {
            placeholder: Variable(name, placeholder.type)
            for placeholder, name in zip(self._placeholders[action], arguments, strict=True)
        }

    def _context(self, state: FactState, mapping: Mapping[Placeholder, Variable]) -> dict[str, Any]:
        variables = {placeholder.name: self._infos[variable.name] for placeholder, variable in mapping.items()}
        return {"state": state, "facts": (), "variables": variables, "mapping": dict(mapping),
                "entity_infos": self._infos}  # fmt: skip

    def _info(self, name: str) -> EntityInfo:
        info: Any = EntityInfo(name, self._types[name])
        info.name, info.definite, info.indefinite = self.names[name], "the", "a"
        return info
