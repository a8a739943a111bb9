"""Fixtures of the env server's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from env_server.sandbox import kernel

_PR_SET_CHILD_SUBREAPER = 36


@pytest.fixture
def adopts_orphans() -> Iterator[None]:
    """Make this process the parent of every orphan below it, so that `sandbox_processes` misses none."""
    kernel.prctl("prctl(PR_SET_CHILD_SUBREAPER)", _PR_SET_CHILD_SUBREAPER, 1)
    yield
    kernel.prctl("prctl(PR_SET_CHILD_SUBREAPER)", _PR_SET_CHILD_SUBREAPER, 0)
