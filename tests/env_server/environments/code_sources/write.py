"""Writes the data file of the bundled problems: `python -m tests.env_server.environments.code_sources.write`."""

from __future__ import annotations

import json
from pathlib import Path

from tests.env_server.environments.code_sources import arithmetic, arrays, choices, graphs, machines, strings
from tests.env_server.environments.code_sources.source import NUM_PUBLIC, Source

ROOT = Path(__file__).resolve().parents[4]
DATA_FILE = ROOT / "env_server" / "environments" / "code_problems.jsonl"
SOURCES = (
    *strings.SOURCES, *arithmetic.SOURCES, *arrays.SOURCES, *choices.SOURCES, *graphs.SOURCES, *machines.SOURCES,
)  # fmt: skip
# Of every seven problems, which are in the order of their kinds, one is for validation and one for the test.
_SPLITS = ("train", "train", "valid", "train", "train", "test", "train")


def data_text() -> str:
    """The file's content."""
    return "".join(json.dumps(_row(source, index)) + "\n" for index, source in enumerate(SOURCES))


def _row(source: Source, index: int) -> dict[str, object]:
    function = {"fn_name": source.function} if source.function else {}
    kind = "function_call" if source.function else "stdin_stdout"
    tests = [{"type": kind, **function, "input": text, "output": source.solve(text)} for text in source.inputs()]
    return {
        "name": source.name,
        "kind": source.kind,
        "split": _SPLITS[index % len(_SPLITS)],
        "problem": source.statement,
        "num_public": NUM_PUBLIC,
        "tests": tests,
        "solutions": [source.solution.lstrip("\n")],
    }


if __name__ == "__main__":
    DATA_FILE.write_text(data_text(), encoding="utf-8")
