"""`longturn envs new`: a package with an environment, its entry point and a test, to be changed into one's own."""

from __future__ import annotations

import keyword
import re
import sys
from importlib.metadata import entry_points
from importlib.resources import files
from pathlib import Path

from longturn.errors import ConfigError

_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
_PATHS = {
    "pyproject.toml": "pyproject.toml.txt",
    "README.md": "README.md.txt",
    "{name}/__init__.py": "package.py.txt",
    "{name}/environment.py": "environment.py.txt",
    "tests/test_{name}.py": "test.py.txt",
}
"""Where each template goes."""


def write_scaffold(name: str, folder: Path) -> list[Path]:
    """Make `folder` and fill it; returns the files, `pyproject.toml` first.

    Raises ConfigError if the name cannot be one, is taken, or the folder exists already.
    """
    _check_name(name)
    try:
        folder.mkdir(parents=True)
    except FileExistsError as error:
        raise ConfigError(f"{folder} exists already; name another with --folder") from error
    except OSError as error:
        raise ConfigError(f"{folder} cannot be made: {error.strerror}; name another with --folder") from error
    words = {"name": name, "title": name.replace("_", " ").capitalize(), "class": _class_name(name)}
    return [_write(folder / path.format(name=name), template, words) for path, template in _PATHS.items()]


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise ConfigError(f"{name!r} is no name of an environment: lower case letters, digits and _, a letter first")
    if name in sys.stdlib_module_names or entry_points(group="longturn.environments", name=name):
        raise ConfigError(f"the name {name!r} is taken by an installed environment or module; choose another")


def _class_name(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def _write(path: Path, template: str, words: dict[str, str]) -> Path:
    text = files("clients.scaffold").joinpath("templates", template).read_text(encoding="utf-8")
    for word, value in words.items():
        text = text.replace("{{" + word + "}}", value)
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path
