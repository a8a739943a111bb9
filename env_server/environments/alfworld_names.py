"""How an ALFWorld game names things, and how its ground actions, an expert's acts and its commands belong together."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from env_server.environments.alfworld_planner import Act

# Ground action: the expert's verb, and which of the action's arguments are the act's.
_ACTS: Mapping[str, tuple[str, tuple[int, ...]]] = {
    "gotolocation": ("go", (3,)),
    "openobject": ("open", (2,)),
    "closeobject": ("close", (2,)),
    "pickupobject": ("take", (2, 3)),
    "putobject": ("put", (2, 3)),
    "cleanobject": ("clean", (3, 2)),
    "heatobject": ("heat", (3, 2)),
    "coolobject": ("cool", (3, 2)),
    "toggleobject": ("use", (2,)),
    "sliceobject": ("slice", (2, 3)),
    "examinereceptacle": ("examine", (1,)),
    "examineobject": ("examine", (1,)),
    "look": ("look", ()),
    "inventory": ("inventory", ()),
    "help": ("help", ()),
}
IDLE_VERBS = frozenset({"examine", "look", "inventory", "help"})
"""Acts that leave everything where and as it was."""
_COMMANDS = {
    "go": "go to {}",
    "open": "open {}",
    "take": "take {} from {}",
    "put": "move {} to {}",
    "clean": "clean {} with {}",
    "heat": "heat {} with {}",
    "cool": "cool {} with {}",
    "use": "use {}",
}


def act_of(words: Sequence[str]) -> Act:
    """The act of a ground action, in the planner's words; the action as it is where the planner has no word for it."""
    action, *arguments = words
    if action not in _ACTS:
        return tuple(words)
    verb, places = _ACTS[action]
    return (verb, *(arguments[place] for place in places))


def command_of(act: Act, names: Mapping[str, str]) -> str:
    """What an agent types for a planner's act."""
    return _COMMANDS[act[0]].format(*(names[word].strip() for word in act[1:]))


def names_of(identifiers: Iterable[str]) -> dict[str, str]:
    """ALFWorld's names: the type and a number, given out from the highest in the order of the identifiers.

    What is no thing of the room keeps its identifier, with a blank behind it as ALFWorld writes it.
    """
    ordered = sorted(identifiers)
    kinds = {name: _kind(name) for name in ordered if "_bar_" in name}
    left = Counter(kinds.values())
    names: dict[str, str] = {}
    for name in ordered:
        kind = kinds.get(name)
        if kind is None:
            names[name] = f"{name} "
        else:
            names[name] = f"{kind} {left[kind]}"
            left[kind] -= 1
    return names


def _kind(identifier: str) -> str:
    kind = identifier.split("_bar_", 1)[0]
    return f"{kind}basin" if "basin" in identifier else kind
