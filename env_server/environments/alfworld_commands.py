"""Which of the commands that can be given now an action means.

`exact` takes what ALFWorld takes: the command itself, in its case, blanks around it aside. `forgiving` takes other
spellings of it too: any case, articles, the verbs of older releases and of common speech, and, where only one command
fits, a noun without its number and no word of the place (`take mug`).
"""

import re
from collections.abc import Iterable, Mapping

MAX_ACTION_CHARS = 200
"""No command is longer."""

_NOISE = re.compile(r"[^\w\s/-]+")
_ARTICLES = re.compile(r"\b(?:the|a|an|some|your|my)\b ?")
_SHORT = {"i": "inventory", "inv": "inventory", "l": "look", "look around": "look", "check inventory": "inventory"}
_GO = "go|goto|walk|move|head|navigate|travel|return"
_TAKE = "pick up|grab|get|fetch|pick|take"
_FROM = "from(?: inside)?|off(?: of)?|out of|in|on"
_PUT = "put|place|insert|drop|set|leave|move"
_INTO = "in/on|in to|on to|inside|into|onto|in|on|to|at"
_REWRITES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"^i (?:will |want to |should )?", ""),
        (rf"^(?:{_GO})(?: back| over)?(?: to)? (?!.*\b(?:to|in|on|into|onto)\b)", "go to "),
        (rf"^(?:{_TAKE}) (.+?) (?:{_FROM}) (.+)$", r"take \1 from \2"),
        (rf"^(?:{_PUT}) (.+?) (?:down )?(?:{_INTO}) (.+)$", r"move \1 to \2"),
        (r"^(?:wash|rinse|clean) (.+?) (?:with|using|in|at|under) (.+)$", r"clean \1 with \2"),
        (r"^(?:warm|cook|microwave|heat)(?: up)? (.+?) (?:with|using|in|inside) (.+)$", r"heat \1 with \2"),
        (r"^(?:chill|refrigerate|cool)(?: down)? (.+?) (?:with|using|in|inside) (.+)$", r"cool \1 with \2"),
        (r"^(?:cut|slice) (.+?) (?:with|using) (.+)$", r"slice \1 with \2"),
        (rf"^(?:{_TAKE}) (.+)$", r"take \1"),
        (r"^(?:wash|rinse|clean) (.+)$", r"clean \1"),
        (r"^(?:warm|cook|microwave|heat)(?: up)? (.+)$", r"heat \1"),
        (r"^(?:chill|refrigerate|cool)(?: down)? (.+)$", r"cool \1"),
        (r"^(?:turn on|switch on|toggle|use) (.+)$", r"use \1"),
        (r"^(?:inspect|look at|look in|look inside|check|x|examine) (.+)$", r"examine \1"),
        (r"^(?:shut|close) (.+)$", r"close \1"),
    )
)
_NUMBER = re.compile(r" \d+\b")


def match_command(action: str, commands: Iterable[str], *, is_forgiving: bool) -> str | None:
    """The command that the action means; None where none does, or more than one may be meant."""
    available = dict.fromkeys(commands)
    stripped = action.strip()
    if stripped in available:
        return stripped
    if not is_forgiving or len(action) > MAX_ACTION_CHARS:
        return None
    by_text = {command.casefold(): command for command in reversed(list(available))}
    said = " ".join(_NOISE.sub(" ", stripped.casefold()).split())
    for text in dict.fromkeys((said, _SHORT.get(said, said), _rewritten(said))):
        found = by_text.get(text) or _only_one(text, by_text)
        if found is not None:
            return found
    return None


def _rewritten(text: str) -> str:
    text = " ".join(_ARTICLES.sub("", text).split())
    for pattern, replacement in _REWRITES:
        text, num_changes = pattern.subn(replacement, text)
        if num_changes and replacement:
            return text
    return text


def _only_one(text: str, by_text: Mapping[str, str]) -> str | None:
    """The command that is this text but for what it leaves out, if there is exactly one: numbers, or the last place."""
    if " " not in text:
        return None
    words = r"(?: \d+)?(?= |$)".join(map(re.escape, _joints(text)))
    pattern = re.compile(rf"{words}(?: (?:from|with) .+)?")
    bare = _bare(text)
    fitting = {
        command
        for known, command in by_text.items()
        if _bare(known).startswith(bare) and pattern.fullmatch(known)
    }  # fmt: skip
    return fitting.pop() if len(fitting) == 1 else None


def _joints(text: str) -> list[str]:
    """The text cut behind every word, where a number may have been left out."""
    return [*re.split(r"(?<=\S)(?= )", text), ""]


def _bare(text: str) -> str:
    return _NUMBER.sub("", text)
