"""Action text: what of it may reach a simulator that reads keystrokes."""

import re

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9' -]*")


def plain_command(action: str, *, max_chars: int) -> str | None:
    """The action as one plain command: blanks and full stops at the ends dropped, runs of spaces made one.

    None where anything but ASCII letters, digits, spaces, hyphens and apostrophes is left, or more than `max_chars`
    characters: control characters act as hot keys in some interpreters, punctuation chains several commands.
    """
    if len(action) > 4 * max_chars:
        return None
    command = " ".join(part for part in action.strip(" \t\r\n.").split(" ") if part)
    if len(command) > max_chars or not _PLAIN.fullmatch(command):
        return None
    return command


def one_line(action: str, *, max_chars: int) -> str | None:
    """The action with runs of spaces made one, blanks at the ends and full stops at the end dropped; may be empty.

    None where anything but printable ASCII is left, or more than `max_chars` characters.
    """
    if len(action) > 4 * max_chars:
        return None
    line = " ".join(part for part in action.strip(" \t\r\n").rstrip(" .").split(" ") if part)
    return line if len(line) <= max_chars and line.isascii() and line.isprintable() else None
