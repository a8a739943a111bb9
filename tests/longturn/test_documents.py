"""Commands, options, make targets, settings and files that a document or a message names exist."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_args

import typer

from clients.config import ActConfig, EvalConfig, ProxyConfig
from env_server.config import EnvServerConfig
from learner.config import LearnConfig
from learner.imitation.config import ImitateConfig
from local_engine.config import EngineConfig
from longturn.cli import build_app
from longturn.config import Config
from longturn.launch.config import EvaluationConfig, RunConfig, TasksConfig, WarmstartConfig

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("longturn", "env_server", "clients", "local_engine", "learner")
DOCUMENTS = sorted(
    path
    for pattern in ("*.md", "*.toml", "Dockerfile", "Makefile", "docs/**/*.md", "deploy/*", "configs/*")
    for path in ROOT.glob(pattern)
)
SOURCES = sorted(
    path
    for package in PACKAGES
    for path in (ROOT / package).rglob("*.py")
    if not path.is_relative_to(ROOT / "longturn" / "v1")
)
TABLES: dict[str, type[Config]] = {
    "run": RunConfig,
    "tasks": TasksConfig,
    "warmstart": WarmstartConfig,
    "imitate": ImitateConfig,
    "evaluation": EvaluationConfig,
    "env_server": EnvServerConfig,
    "engine": EngineConfig,
    "act": ActConfig,
    "proxy": ProxyConfig,
    "eval": EvalConfig,
    "learner": LearnConfig,
}
FILE = re.compile(
    rf"(?<![\w./-])(?:{'|'.join(('configs', 'docs', 'examples', 'deploy', 'tests', 'proto', 'benchmarks', *PACKAGES))})"
    r"/[\w./*-]*\.(?:py|md|toml|yaml|txt|json|proto|sh)\b"
)
SETTING = re.compile(rf"({'|'.join(TABLES)})((?:\.(?:[a-z_0-9]+|\*))+)")
APP: Any = typer.main.get_command(build_app())


@cache
def snippets(path: Path) -> tuple[str, ...]:
    """What is shown as code: spans in backticks, and command lines of indented blocks, continued ones joined."""
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    if path.suffix == ".py":
        text = re.sub(r'"\s*\n\s*f?"', "", text)
    spans = re.findall(r"`([^`\n]+)`", text)
    lines = re.findall(r"^#? {4,}((?:\w+=\S+ )?(?:longturn|make|python) .*)$", text, re.M)
    return tuple(re.sub(r"^\w+=\S+ |  +#.*$", "", snippet) for snippet in [*spans, *lines])


def all_snippets() -> Iterator[tuple[Path, str]]:
    for path in [*DOCUMENTS, *SOURCES]:
        for snippet in snippets(path):
            yield path.relative_to(ROOT), snippet


def command_of(words: list[str]) -> Any:
    """The command that the words after `longturn` name; None if there is none."""
    command: Any = APP
    for word in words:
        if not hasattr(command, "commands") or word.startswith("-"):
            break
        if word not in command.commands:
            return None
        command = command.commands[word]
    return command


def test_every_command_and_option_exists() -> None:
    wrong: list[tuple[Path, str]] = []
    num_options = 0
    for path, snippet in all_snippets():
        words = snippet.split()
        if words[:1] != ["longturn"] or not re.fullmatch(r"[a-z]+", "".join(words[1:2])):
            continue
        command = command_of(words[1:])
        options = {word.partition("=")[0] for word in words if re.fullmatch(r"--[a-z-]+(=.*)?", word)}
        num_options += len(options)
        if command is None or not options <= {name for option in command.params for name in option.opts} | {"--help"}:
            wrong.append((path, snippet))
    assert wrong == []
    assert num_options > 20


def test_every_make_target_exists() -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    named = {(path, target) for path, snippet in all_snippets() for target in re.findall(r"^make (\S+)", snippet)}
    assert named
    assert {(path, target) for path, target in named if target not in targets} == set()


def test_every_module_that_is_run_exists() -> None:
    command = re.compile(rf"^python3? -m ((?:tests|{'|'.join(PACKAGES)})[\w.]*)")
    named = {(path, module) for path, snippet in all_snippets() for module in command.findall(snippet)}
    assert named
    assert {(path, module) for path, module in named if importlib.util.find_spec(module) is None} == set()


def test_every_file_exists() -> None:
    named = {
        (path.relative_to(ROOT), name)
        for path in [*DOCUMENTS, *SOURCES]
        for name in FILE.findall(path.read_text(encoding="utf-8"))
        if "NNNN" not in name
    }
    assert len(named) > 30
    assert {(path, name) for path, name in named if not any(ROOT.glob(name))} == set()


def test_every_link_leads_somewhere() -> None:
    links = {
        (path, link)
        for path in DOCUMENTS
        if path.suffix == ".md"
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8"))
    }
    assert links
    assert {(path, link) for path, link in links if not (path.parent / link).exists()} == set()


def is_setting(model: Any, names: list[str]) -> bool:
    """Whether the names lead to a setting of a table; `*` stands for any."""
    if not names or names == ["*"]:
        return True
    nested = [part for part in (model, *get_args(model)) if isinstance(part, type) and issubclass(part, Config)]
    if not nested:
        return model is not None and "dict" in str(model)
    fields = nested[0].model_fields
    chosen = fields.values() if names[0] == "*" else [fields[names[0]]] if names[0] in fields else []
    return any(is_setting(field.annotation, names[1:]) for field in chosen)


def test_every_setting_exists() -> None:
    wrong: list[tuple[Path, str]] = []
    num_settings = 0
    for path in DOCUMENTS:
        for snippet in snippets(path):
            words = re.findall(r"--set '?([^ =]+)=", snippet) if " " in snippet else [snippet]
            for table, names in (found.groups() for word in words if (found := SETTING.fullmatch(word))):
                num_settings += 1
                is_file = names == ".jsonl" or ROOT.joinpath(table, *names[1:].split(".")).with_suffix(".py").exists()
                if not is_file and not is_setting(TABLES[table], names[1:].split(".")):
                    wrong.append((path.relative_to(ROOT), table + names))
    assert wrong == []
    assert num_settings > 10
