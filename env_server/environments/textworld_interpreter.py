"""One Z-machine in this process: commands in, parsed replies out.

The interpreter is C code that takes some control characters for hot keys, so `send` must only be given plain commands
(`env_server.text.plain_command`).
"""

import ctypes
import hashlib
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import jericho

from env_server.environment import EnvironmentBrokenError

# Nothing in these games is random in play; a fixed seed keeps the interpreter from taking the time of day.
_INTERPRETER_SEED = 1

_STATUS_LINE = re.compile(r"\n>\s*-= (?P<room>[^\n]*?) =-\s*-?\d+/\d+\s*$")
_PROMPT = re.compile(r"\n>[^\n]*$")
_TAG = re.compile(r"<(?P<name>score|moves|inventory|description)>\n(?P<body>.*?)</(?P=name)>", re.DOTALL)
_TRACE = re.compile(r"\[([^\]\n]+)\]\n?")
_QUESTION_AT_END = re.compile(r"\s*Would you like to RESTART,.*", re.DOTALL)
_BLANK_LINES = re.compile(r"\n\s*\n")
_SPACE_AROUND_LINES = re.compile(r"^[ \t]+(?=\*\*\*)|[ \t]+$", re.MULTILINE)
_ROOM_HEADER = re.compile(r"-= [^\n]+ =-")
_WON = "*** The End ***"
_LOST = "*** You lost! ***"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What the game said to one command."""

    text: str
    """Without status line, prompt, tags and traces."""
    room: str | None
    """Name of the room the player is in, in lower case; None after the end of a game."""
    score: int | None
    """None where no turn has passed, and after a loss."""
    has_turn_passed: bool
    """False where the parser did not understand, asked back, or the command was out of the world."""
    is_won: bool
    is_lost: bool
    infos: Mapping[str, str]
    """Asked-for `inventory` and `description`."""
    events: tuple[str, ...]
    """Inform 7 actions that succeeded, if traced."""


class Interpreter:
    """A running story file; `infos` of `inventory` and `description` come with every turn that passes."""

    def __init__(self, story: Path, *, infos: tuple[str, ...] = (), is_traced: bool = False) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", jericho.UnsupportedGameWarning)
            self._frotz = jericho.FrotzEnv(str(story), seed=_INTERPRETER_SEED)
        self._infos = infos
        self._is_traced = is_traced
        self._ram = (ctypes.c_ubyte * self._frotz.frotz_lib.getRAMSize())()

    def start(self) -> Reply:
        """Begin; the reply's text is the room only, without banner and introduction."""
        first = parse_reply(self._frotz.reset()[0], is_traced=False)
        infos: dict[str, str] = {}
        for name in ("score", *self._infos):
            infos |= self.send(f"tw-extra-infos {name}").infos
        if self._is_traced:
            self.send("tw-trace-actions")
        headers = list(_ROOM_HEADER.finditer(first.text))
        if not headers or first.room is None:
            raise EnvironmentBrokenError(f"the game began without a room: {first.text[-200:]!r}")
        return Reply(
            text=first.text[headers[-1].start() :],
            room=first.room,
            score=0,
            has_turn_passed=False,
            is_won=False,
            is_lost=False,
            infos=infos,
            events=(),
        )

    def send(self, command: str) -> Reply:
        """Apply one plain command. Raises `EnvironmentBrokenError` if the machine halted outside a game's end."""
        raw: str = self._frotz.step(command)[0]
        reply = parse_reply(raw, is_traced=self._is_traced)
        if self._frotz.frotz_lib.halted() > 0 and not (reply.is_won or reply.is_lost):
            raise EnvironmentBrokenError(f"the interpreter halted after {command!r}: {raw[-200:]!r}")
        return reply

    def state_hash(self, observation: str) -> bytes:
        """16 bytes over the machine's memory, turn counter included, and the observation."""
        self._frotz.frotz_lib.getRAM(ctypes.byref(self._ram))
        digest = hashlib.blake2b(self._ram, digest_size=16)
        digest.update(observation.encode("utf-8", "replace"))
        return digest.digest()


def parse_reply(raw: str, *, is_traced: bool) -> Reply:
    """Take one output of the interpreter apart."""
    status = _STATUS_LINE.search(raw)
    is_won, is_lost = _WON in raw, _LOST in raw
    text = _QUESTION_AT_END.sub("", _PROMPT.sub("", raw))
    tags = {match["name"]: match["body"].strip() for match in _TAG.finditer(text)}
    text = _TAG.sub("", text)
    events: list[str] = []
    if is_traced:
        events = [
            event.removesuffix(" - succeeded") for event in _TRACE.findall(text) if event.endswith(" - succeeded")
        ]
        text = _TRACE.sub("", text)
    return Reply(
        text=_tidy(text),
        room=status["room"].lower() if status and not (is_won or is_lost) else None,
        score=int(tags["score"]) if "score" in tags else None,
        has_turn_passed="score" in tags or is_won or is_lost,
        is_won=is_won,
        is_lost=is_lost,
        infos={name: _TRACE.sub("", body).strip() if is_traced else body for name, body in tags.items()
               if name in ("inventory", "description")},
        events=tuple(event for event in events if not event.startswith("(")),
    )  # fmt: skip


def _tidy(text: str) -> str:
    return _BLANK_LINES.sub("\n\n", _SPACE_AROUND_LINES.sub("", text)).strip()
