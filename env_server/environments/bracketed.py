"""Actions of the form `name[argument]`."""

import re

_FORM = re.compile(r"([A-Za-z]+)\s*\[(.*)\]")


def one_line(text: str) -> str:
    """The text on one line, what cannot be printed made a blank: as such it can stand in an action."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


def bracketed(action: str, *, max_chars: int) -> tuple[str, str] | None:
    """Name in lower case, and argument without blanks at its ends, of `name[argument]`.

    None where the action is anything else, its argument is empty or holds characters that cannot be printed (line
    ends, control characters, lone surrogates), or it has more than `max_chars` characters.
    """
    if len(action) > max_chars:
        return None
    form = _FORM.fullmatch(action.strip())
    if form is None:
        return None
    argument = form[2].strip()
    return (form[1].lower(), argument) if argument and argument.isprintable() else None
