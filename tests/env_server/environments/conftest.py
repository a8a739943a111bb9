"""Games made once for all tests of this folder."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from env_server.environments.textworld_cache import CACHE_VARIABLE


@pytest.fixture(scope="session")
def games(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the game cache for this session: an empty one, or the one named by the variable."""
    root = tmp_path_factory.mktemp("games")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_VARIABLE, os.environ.get("LONGTURN_TEST_CACHE", str(root)))
        yield root
