"""ALFWorld games as the simulator takes them: PDDL translated once, then kept in the cache.

The translator of Fast Downward is Python and takes most of a second per game, twice per reset in the library; what it
gives depends on nothing but the two PDDL texts. Importing this module imports no game library; `translate` does.
"""

import base64
import hashlib
import json
import logging
import os
import sys
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any

from env_server.environment import EnvironmentBrokenError
from env_server.environments.textworld_cache import CACHE_VARIABLE, default_cache_root
from longturn.disk import DiskError, write_whole

logger = logging.getLogger(__name__)

TRANSLATION_VERSION = 1
"""Rises whenever the same PDDL may give another translation."""

# The translator has global options and captures stdout.
_TRANSLATOR = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Game:
    """What a game file holds."""

    domain: str
    grammar: str
    problem: str
    walkthrough: tuple[str, ...]

    @property
    def key(self) -> str:
        """Fixed by the two PDDL texts."""
        text = f"{TRANSLATION_VERSION}\0{self.domain}\0{self.problem}"
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """A translated PDDL problem."""

    sas: str
    """Compressed and in base 64; `sas_text` has it plain."""
    objects: Sequence[tuple[str, str]]
    """(name, type)."""
    types: Sequence[tuple[str, Sequence[str]]]
    """(name, supertypes)."""
    parameters: Mapping[str, Sequence[tuple[str, str]]]
    """Of every action: (name, type)."""
    facts: Sequence[tuple[str, Sequence[str]]]
    """What is true at the start: (predicate, arguments)."""
    fluents: Sequence[str]
    """Predicates that some action changes."""
    conditional: Sequence[str]
    """Actions whose effects depend on the state."""

    @property
    def sas_text(self) -> bytes:
        """The task for the simulator."""
        return zlib.decompress(base64.b64decode(self.sas))


def obtain_translation(game: Game) -> Translation:
    """The translation from the cache, made and kept there first where it is missing or damaged.

    Raises `EnvironmentBrokenError` where the PDDL is no good or the cache cannot be written.
    """
    return Translation(**cached("translated", game.key, lambda: asdict(translate(game))))


def translate(game: Game) -> Translation:
    """Run the translator; `EnvironmentBrokenError` where it cannot read the game."""
    package: Any = import_module("fast_downward")
    with _TRANSLATOR:
        arguments = sys.argv
        try:
            task, sas = package.pddl2sas(game.domain, game.problem)
        except (Exception, SystemExit) as error:  # the translator asserts, raises what it likes, and exits
            raise EnvironmentBrokenError(f"the PDDL cannot be translated: {type(error).__name__}: {error}") from error
        finally:
            sys.argv = arguments
    effects = {action.name: list(action.effects) for action in task.actions}
    return Translation(
        sas=base64.b64encode(zlib.compress(sas.encode("utf-8"))).decode(),
        objects=[(item.name, item.type_name) for item in task.objects],
        types=[(item.name, list(item.supertype_names)) for item in task.types],
        parameters={
            # Normalising adds those of its quantifiers behind the action's own.
            action.name: [
                (item.name.strip("?"), item.type_name) for item in action.parameters[: action.num_external_parameters]
            ]
            for action in task.actions
        },
        # The translator keeps them in a set, whose order differs between processes.
        facts=sorted(
            (atom.predicate, list(atom.args))
            for atom in task.init
            if hasattr(atom, "predicate") and atom.predicate != "="
        ),
        fluents=sorted({effect.literal.predicate for items in effects.values() for effect in items}),
        conditional=sorted(
            name for name, items in effects.items() if any(_is_conditional(effect.condition) for effect in items)
        ),
    )


def cached(kind: str, key: str, make: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    """The JSON object `key` of the cache; `make` makes it where it is missing or cannot be read.

    Two processes may make the same object at once; either's is good. Raises `EnvironmentBrokenError`.
    """
    root = default_cache_root(os.environ) / "alfworld" / kind
    path = root / key[:2] / f"{key}.z"
    try:
        return json.loads(zlib.decompress(path.read_bytes()))
    except FileNotFoundError:
        pass
    except (OSError, ValueError, zlib.error) as error:
        logger.warning("a cached file is damaged and made anew", extra={"path": str(path), "reason": str(error)})
    text = json.dumps(make())
    try:
        write_whole(path, zlib.compress(text.encode()))
    except DiskError as error:
        hint = f"set {CACHE_VARIABLE} to a folder with space that can be written"
        raise EnvironmentBrokenError(f"the game cache {root} failed: {error}; {hint}") from error
    return json.loads(text)


def _is_conditional(condition: Any) -> bool:
    return type(condition).__name__ != "Truth"
