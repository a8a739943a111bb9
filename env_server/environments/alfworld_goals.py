"""What an ALFWorld game asks for, read from the goal of its PDDL problem.

A goal is a conjunction of parts. The four kinds of parts below, alone or together, make ALFWorld's six task types and
the longer tasks of the generator; a goal with any other part is not understood and has no expert.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Tree = str | list["Tree"]

STATES = {"isclean": "clean", "ishot": "hot", "iscool": "cool"}
_ABILITIES = frozenset({"cleanable", "heatable", "coolable", "toggleable"})
_TOKEN = re.compile(r"[()]|[^\s()]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """`count` objects of a type, each in the state, in or on one receptacle of a type."""

    object_type: str
    receptacle_type: str
    state: str = ""
    """`clean`, `hot`, `cool` or empty."""
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The agent holds an object of the type."""

    object_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lit:
    """The agent stands at a lamp of the type, which has been used."""

    object_type: str


GoalPart = Placed | Held | Lit


def parse_goal(domain: str, problem: str) -> tuple[GoalPart, ...] | None:
    """The parts of a problem's goal, types in lower case without `type`; None where one is not understood.

    A conjunct may be a derived predicate without arguments, which the domain defines.
    """
    start = problem.find("(:goal")
    tree = _read(problem[start:]) if start >= 0 else None
    if not isinstance(tree, list) or len(tree) != 2:
        return None
    whole = tree[1]
    conjuncts = whole[1:] if isinstance(whole, list) and whole[:1] == ["and"] else [whole]
    derived = _derived(domain)
    parts = [_part(list(_literals(derived.get(_name(conjunct), conjunct)))) for conjunct in conjuncts]
    known = tuple(part for part in parts if part is not None)
    return known if known and len(known) == len(parts) else None


def _derived(domain: str) -> dict[str, Tree]:
    """Definitions of the derived predicates without arguments."""
    found = [_read(domain[match.start() :]) for match in re.finditer(r"\(:derived", domain)]
    return {_name(tree[1]): tree[2] for tree in found if isinstance(tree, list) and len(tree) == 3}


def _name(tree: Tree) -> str:
    return tree[0] if isinstance(tree, list) and len(tree) == 1 and isinstance(tree[0], str) else ""


def _read(text: str) -> Tree | None:
    """The first expression of a text; None where it does not end."""
    stack: list[list[Tree]] = [[]]
    for token in _TOKEN.findall(text.lower()):
        if token == "(":
            stack.append([])
        elif token == ")":
            done = stack.pop()
            stack[-1].append(done)
            if len(stack) == 1:
                return done
        else:
            stack[-1].append(token)
    return None


def _literals(tree: Tree) -> Iterator[tuple[str, ...]]:
    """Everything that must hold, whatever the nesting; an unknown connective is a literal that nobody knows."""
    if isinstance(tree, str) or not tree or not isinstance(tree[0], str):
        yield ("?",)
        return
    head, *rest = tree
    if head == "and":
        for child in rest:
            yield from _literals(child)
    elif head == "exists":
        yield from _literals(rest[-1])
    elif head == "not" and len(rest) == 1 and isinstance(rest[0], list) and rest[0][:1] == ["="]:
        yield ("different", *(str(word) for word in rest[0][1:]))
    elif all(isinstance(word, str) for word in rest):
        yield (str(head), *(str(word) for word in rest))
    else:
        yield ("?",)


def _part(literals: Sequence[tuple[str, ...]]) -> GoalPart | None:
    types = {words[1]: words[2].removesuffix("type") for words in literals if words[0].endswith("type")}
    others = [words for words in literals if not words[0].endswith("type") and words[0] not in _ABILITIES]
    names = sorted(words[0] for words in others)
    try:
        if names == ["holds"]:
            return Held(object_type=types[others[0][2]])
        if names == ["atlocation", "inreceptacle", "istoggled", "receptacleatlocation"]:
            lamp = next(words[1] for words in others if words[0] == "istoggled")
            return Lit(object_type=types[lamp])
        return _placed(others, types)
    except (KeyError, IndexError):
        return None


def _placed(literals: Sequence[tuple[str, ...]], types: dict[str, str]) -> Placed | None:
    placed = [words[1:] for words in literals if words[0] == "inreceptacle"]
    states = {(words[1], STATES[words[0]]) for words in literals if words[0] in STATES}
    num_different = sum(words[0] == "different" for words in literals)
    objects, receptacles = {words[0] for words in placed}, {words[1] for words in placed}
    state = next(iter(states))[1] if states else ""
    is_known = (
        len(placed) + len(states) + num_different == len(literals)
        and len(receptacles) == 1
        and len({types[name] for name in objects}) == 1
        and num_different == len(objects) * (len(objects) - 1) // 2
        and states in (set[tuple[str, str]](), {(name, state) for name in objects})
    )
    if not is_known:
        return None
    return Placed(
        object_type=types[next(iter(objects))],
        receptacle_type=types[next(iter(receptacles))],
        state=state,
        count=len(objects),
    )
