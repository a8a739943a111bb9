"""The suite as pytest tests, for whoever writes an environment:

    from clients.conformance.pytest_suite import ConformanceTests
    from clients.conformance.subject import SuiteOptions

    class TestLighthouse(ConformanceTests):
        environment = "lighthouse"
        options = SuiteOptions(num_resets=200, seconds=5.0)

Each check is a test of its own; one server serves them all.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import ClassVar

import pytest

from clients.conformance.server import CheckedServer
from clients.conformance.subject import SuiteOptions
from clients.conformance.suite import CHECKS, Verdict, run_checks


class ConformanceTests:
    """Subclass it under a name that begins with `Test` and say which environment is meant."""

    environment: ClassVar[str]
    """Name under the entry point group `longturn.environments`, or an import path package.module:Class."""
    options: ClassVar[SuiteOptions] = SuiteOptions(num_resets=500, seconds=5.0)
    """How long and on what it plays."""
    _folder: ClassVar[tempfile.TemporaryDirectory[str]]
    _server: ClassVar[CheckedServer]

    @classmethod
    def setup_class(cls) -> None:
        """Start the server."""
        cls._folder = tempfile.TemporaryDirectory(prefix="longturn-check-")
        try:
            cls._server = CheckedServer(cls.environment, Path(cls._folder.name))
        except BaseException:
            cls._folder.cleanup()
            raise

    @classmethod
    def teardown_class(cls) -> None:
        """Stop the server."""
        cls._server.stop()
        cls._folder.cleanup()

    @pytest.mark.parametrize("check", list(CHECKS))
    def test_conformance(self, check: str) -> None:
        """One check; its message says how to run it again."""
        (report,) = asyncio.run(run_checks(self._server, self.options, [check])).checks
        if report.verdict is Verdict.SKIP:
            pytest.skip(report.detail)
        assert report.verdict is Verdict.PASS, f"{report.detail}\nreproduce: {report.reproduce}"
