"""`longturn view`: reads a run's trajectories from its ledger, or from a recorded file, and shows them as text.

The ledger is opened read-only, so a running learner is never disturbed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from longturn.codec import trajectory_from_bytes
from longturn.errors import ConfigError
from longturn.options import refuse_given
from longturn.records import Trajectory, Turn
from longturn.report.ledger import open_read_only
from longturn.trajectory_file import read_trajectories

_QUERY = """
SELECT t.group_id, t.member_index, t.attempt, t.trajectory, s.purpose, s.batch,
       (SELECT v.verdict FROM verdicts v WHERE v.group_id = t.group_id ORDER BY v.batch DESC LIMIT 1) AS verdict
FROM trajectories t JOIN groups g USING (group_id) JOIN slots s USING (slot_id)
WHERE (:batch IS NULL OR s.purpose != 'EVAL' AND s.batch = :batch) AND (:group IS NULL OR t.group_id = :group)
  AND (:member IS NULL OR t.member_index = :member)
ORDER BY t.received_s DESC, t.member_index LIMIT :limit
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A trajectory and where it stands in the run."""

    name: str
    trajectory: Trajectory
    batch: int | None = None
    purpose: str = ""
    verdict: str = ""


def view(
    context: typer.Context,
    source: Annotated[Path, typer.Argument(help="Run folder, ledger.db, or a file written by `act --record`.")],
    which: Annotated[
        str | None, typer.Argument(help="GROUP or GROUP/MEMBER to read in full; a number in a recorded file.")
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Only this batch of training.")] = None,
    last: Annotated[int, typer.Option(help="How many to list, newest first.", min=1)] = 20,
    tokens: Annotated[bool, typer.Option("--tokens", help="Also show token ids, logprobs and versions.")] = False,
) -> None:
    """List a run's newest trajectories, or read some of them in full."""
    if which is None:
        refuse_given(context, ["tokens"], because="they are shown with a trajectory that is read: name it")
    else:
        refuse_given(context, ["last"], because=f"all of {which} is shown")
    console = Console(highlight=False, soft_wrap=True)
    found = list(_find(source, which, batch=batch, last=last))
    if not found:
        raise ConfigError(f"no trajectory matches in {source}; `longturn view {source}` lists the newest ones")
    if which is None:
        console.print(_listing(found))
        return
    for item in found:
        _show(console, item, with_tokens=tokens)


def _find(source: Path, which: str | None, *, batch: int | None, last: int) -> Iterator[Found]:
    ledger = source / "ledger.db" if source.is_dir() else source
    if not ledger.is_file():
        raise ConfigError(f"{ledger} does not exist; give a run folder, its ledger.db, or a recorded file")
    if ledger.suffix == ".db":
        return _from_ledger(ledger, which, batch=batch, last=last)
    if batch is not None:
        raise ConfigError(f"--batch would do nothing: {ledger} is a recorded file, which has no batches")
    return _from_recording(ledger, which, last=last)


def _from_ledger(ledger: Path, which: str | None, *, batch: int | None, last: int) -> Iterator[Found]:
    group, separator, member = (which or "").partition("/")
    if separator and not member.isdecimal():
        raise ConfigError(f"{which!r} names no member: give GROUP or GROUP/NUMBER, such as {group or 't000000.0'}/0")
    arguments = {
        "batch": batch,
        "group": group or None,
        "member": int(member) if member else None,
        "limit": last if which is None else -1,
    }
    with open_read_only(ledger) as connection:
        for group_id, member_index, attempt, data, purpose, of_batch, verdict in connection.execute(_QUERY, arguments):
            yield Found(
                name=f"{group_id}/{member_index}" + (f" (attempt {attempt})" if attempt else ""),
                trajectory=trajectory_from_bytes(data),
                batch=of_batch,
                purpose=purpose,
                verdict=verdict or "",
            )


def _from_recording(path: Path, which: str | None, *, last: int) -> Iterator[Found]:
    trajectories = list(read_trajectories(path))
    numbers: Sequence[int] = range(len(trajectories))[-last:]
    if which is not None:
        if not which.isdecimal() or int(which) >= len(trajectories):
            raise ConfigError(f"{path} holds trajectories 0 to {len(trajectories) - 1}, not {which!r}")
        numbers = [int(which)]
    for number in numbers:
        yield Found(name=str(number), trajectory=trajectories[number])


def _listing(found: Sequence[Found]) -> Table:
    names = ("batch", "kind", "status", "turns", "return", "success", "versions", "verdict")
    table = Table(Column("trajectory", no_wrap=True), *names)
    for item in found:
        trajectory = item.trajectory
        table.add_row(
            item.name,
            "" if item.batch is None else f"{item.purpose.lower()} {item.batch}",
            trajectory.task_kind or trajectory.task.environment,
            _status(trajectory),
            str(len(trajectory.turns)),
            f"{trajectory.episode_return:.2f}",
            "yes" if trajectory.success else "no",
            _versions(trajectory.turns),
            item.verdict,
        )
    return table


def _status(trajectory: Trajectory) -> str:
    cause = trajectory.end_cause or trajectory.failure
    detail = "" if cause is None else f" ({getattr(cause, 'name', None) or getattr(cause, 'reason', '')})"
    return trajectory.status.name.lower() + detail.lower()


def _versions(turns: Sequence[Turn]) -> str:
    versions = sorted({span.policy_version for turn in turns for span in turn.policy_spans})
    return "" if not versions else f"{versions[0]}" + (f"-{versions[-1]}" if len(versions) > 1 else "")


def _show(console: Console, item: Found, *, with_tokens: bool) -> None:
    trajectory = item.trajectory
    console.rule(f"{item.name}  {trajectory.task.environment} {trajectory.task.task_id}  seed {trajectory.seed}")
    console.print(_text(trajectory.initial_observation, "cyan"))
    for index, turn in enumerate(trajectory.turns):
        console.print(_text(f"[{index}] {turn.reasoning}".rstrip(), "dim"))
        flags = "" if turn.action_valid else "  (not valid)"
        flags += "" if turn.format_valid else "  (malformed)"
        progress = "" if turn.progress is None else f"  progress {turn.progress:.2f}"
        console.print(_text(f"> {turn.action}{flags}  reward {turn.reward:g}{progress}", "bold"))
        if with_tokens:
            console.print(_text(_tokens(turn), "dim"))
        console.print(_text(turn.observation, "cyan"))
    console.print(
        _text(
            f"{_status(trajectory)}, return {trajectory.episode_return:g}, success {trajectory.success},"
            f" {len(trajectory.turns)} turns, {trajectory.num_completion_tokens} sampled tokens, {item.verdict}",
            "bold",
        )
    )


def _tokens(turn: Turn) -> str:
    pairs = zip(turn.completion_ids, turn.behavior_logprobs, strict=True)
    sampled = " ".join(f"{token}:{logprob:.3f}" for token, logprob in pairs)
    return f"+{len(turn.prompt_ids)} prompt tokens; sampled {sampled}; versions {_versions((turn,))}"


def _text(text: str, style: str) -> Text:
    # Observations may hold escape sequences; a terminal must not obey them.
    return Text("".join(letter if letter.isprintable() or letter == "\n" else "\ufffd" for letter in text), style=style)
