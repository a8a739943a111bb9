"""One typed tree per daemon, read from a TOML table and dotted overrides.

A run's TOML file has a table per daemon; each daemon reads its own and ignores the others. Unknown keys are refused,
and the message names the nearest known one.
"""

from __future__ import annotations

import hashlib
import json
import textwrap
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import tomli_w
from pydantic import BaseModel, ConfigDict, ValidationError

from longturn.errors import ConfigError
from longturn.nearest import nearest_name

Tree = dict[str, object]
ConfigT = TypeVar("ConfigT", bound="Config")


class Config(BaseModel):
    """Base of every configuration: frozen, strict about names, documented under each field."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, validate_default=True)


def load_config(
    model: type[ConfigT], *, table: str, path: Path | None = None, overrides: Sequence[str] = ()
) -> ConfigT:
    """Build `model` from table `table` of the TOML file `path`, then apply overrides such as `port=0` or `a.b=1`.

    An override may also start with the table's own name. Raises ConfigError naming the offending key.
    """
    tree = _read_table(path, table) if path else {}
    for override in overrides:
        apply_override(tree, override, table=table)
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(_describe(error, model, table)) from error


def dump_config(config: Config, *, table: str) -> str:
    """The resolved configuration as TOML, with what each setting means above it; an unset one is a comment."""
    return "\n".join(_table_lines(config, table)) + "\n"


def config_digest(config: Config) -> str:
    """Twelve hex digits that change whenever a value changes."""
    text = json.dumps(config.model_dump(mode="json"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def read_toml(path: Path) -> Tree:
    """The file's tables; ConfigError if it is absent or not TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"config file {path} does not exist; give another with --config") from error
    except OSError as error:
        raise ConfigError(f"config file {path} cannot be read: {error.strerror}; give another with --config") from error
    except (ValueError, RecursionError) as error:  # of TOML, of UTF-8, or of tables nested too deep
        raise ConfigError(f"config file {path} is not valid TOML: {error}") from error


def apply_override(tree: Tree, override: str, *, table: str = "") -> None:
    """Put what `a.b=VALUE` says into the tree, its value read by `parse_value`.

    With `table` the tree is that table, whose name may stand before the rest; without, the name must say a table.
    Raises ConfigError where the override has another form, or where a table it names is a value.
    """
    name, separator, text = override.partition("=")
    keys = [key.strip() for key in name.split(".")]
    if table and keys[0] == table and len(keys) > 1:
        keys = keys[1:]
    if not separator or not all(keys) or (not table and len(keys) < 2):
        example = f"{table}.port=0" if table else "learner.batch.num_batches=3"
        form = "name=value" if table else "table.name=value"
        raise ConfigError(f"override {override!r} has not the form {form}, such as {example}")
    branch = tree
    for key in keys[:-1]:
        below = branch.setdefault(key, {})
        if not isinstance(below, dict):
            raise ConfigError(f"override {override!r}: {key} is a value, not a table")
        branch = below
    branch[keys[-1]] = parse_value(text.strip())


def spell_override(name: str, value: object) -> str:
    """`name=VALUE` as `apply_override` and `parse_value` read it back, whatever a text or a path holds."""
    return f"{name}={_inline(str(value) if isinstance(value, Path) else value)}"


def parse_value(text: str) -> object:
    """The value that the right side of `name=value` spells: TOML, or else the text itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # no TOML, a number of too many digits, or tables nested too deep
        return text


def _table_lines(config: Config, path: str) -> Iterator[str]:
    """A table with its settings, then the tables below it."""
    yield from _comment(type(config).__doc__ or "")
    yield f"[{path}]"
    values = config.model_dump(mode="json", exclude_none=True)
    below: dict[str, Config] = {}
    for name, field in type(config).model_fields.items():
        value = getattr(config, name)
        if isinstance(value, Config):
            below[name] = value
            continue
        yield from _comment(field.description or "")
        yield f"{name} = {_inline(values[name])}" if name in values else f"# {name} is not set"
    for name, value in below.items():
        yield ""
        yield from _table_lines(value, f"{path}.{name}")


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, width=118, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)


def _inline(value: object) -> str:
    """A TOML value on one line."""
    if isinstance(value, dict):
        parts = [f"{_key(name)} = {_inline(part)}" for name, part in value.items()]
        return f"{{ {', '.join(parts)} }}" if parts else "{}"
    if isinstance(value, list):
        return f"[{', '.join(map(_inline, value))}]"
    return tomli_w.dumps({"value": value}).removeprefix("value = ").rstrip("\n")


def _key(name: str) -> str:
    """A name as TOML spells it, quoted where it must be."""
    return tomli_w.dumps({name: 0}).removesuffix(" = 0\n")


def _read_table(path: Path, table: str) -> Tree:
    tree = read_toml(path).get(table, {})
    if not isinstance(tree, dict):
        raise ConfigError(f"{table} in {path} must be a table, such as [{table}]")
    return tree


def _describe(error: ValidationError, model: type[BaseModel], table: str) -> str:
    lines: list[str] = []
    for item in error.errors():
        path = ".".join(str(key) for key in (table, *item["loc"]))
        if item["type"] == "extra_forbidden":
            lines.append(f"{path}: unknown setting{_nearest(str(item['loc'][-1]), model, item['loc'][:-1])}")
        else:
            lines.append(f"{path}: {item['msg']}")
    return "; ".join(lines)


def _nearest(name: str, model: type[BaseModel], parents: Sequence[int | str]) -> str:
    names = _names_below(model, parents)
    nearest = nearest_name(name, names)
    return f", did you mean {nearest}?" if nearest else f"; known here: {', '.join(sorted(names))}"


def _names_below(model: type[BaseModel], parents: Sequence[int | str]) -> list[str]:
    for parent in parents:
        field = model.model_fields.get(str(parent))
        if field is not None and isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            model = field.annotation
    return list(model.model_fields)
