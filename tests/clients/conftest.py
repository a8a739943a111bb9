"""Fixtures shared by the client tests: one env server for all that do not break it, and a small tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from clients.renderer import FormatRenderer, load_tag_renderer
from tests.clients.daemons import server_process
from tests.clients.tokens import write_tokenizer


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a server with the echo and the faulty environment."""
    with server_process(tmp_path_factory.mktemp("env_server")) as server:
        yield server.address


@pytest.fixture(scope="session")
def tokenizer_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer.json with the five tags: one token per byte."""
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")


@pytest.fixture(scope="session")
def renderer(tokenizer_path: Path) -> FormatRenderer:
    """The plain tag format over that tokenizer."""
    return load_tag_renderer(tokenizer_path, max_observation_tokens=600)
