"""How the suite's report is printed: a line per check, or one JSON object."""

from __future__ import annotations

import json

import typer

from clients.conformance.suite import CHECKS, CheckReport, SuiteReport

_WIDTH = max(map(len, CHECKS))


def print_line(report: CheckReport) -> None:
    """One check as one line."""
    reproduce = f"; reproduce: {report.reproduce}" if report.reproduce else ""
    detail = (report.detail + reproduce).replace("\n", " ")
    typer.echo(f"{report.verdict.value}  {report.name:{_WIDTH}}  {detail}")


def print_json(report: SuiteReport) -> None:
    """The whole report."""
    tree = {
        "environment": report.environment,
        "version": report.version,
        "data_hash": report.data_hash,
        "has_passed": report.has_passed,
        "checks": [check.to_json() for check in report.checks],
    }
    typer.echo(json.dumps(tree))
