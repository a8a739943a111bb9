"""The wire contract: lint, compatibility with the last release, generated code, and the bytes of version 1."""

from __future__ import annotations

import difflib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.message import Message

from longturn.codec import identity_to_proto, step_result_to_proto, task_to_proto, trajectory_to_proto
from longturn.dispatch import unwrap, wrap
from longturn.records import EpisodeStatus, StepResult
from longturn.v1 import dispatch_pb2, environment_pb2, status_pb2
from tests.longturn.examples import make_task, make_trajectory

ROOT = Path(__file__).resolve().parent.parent
GOLDEN_BYTES = ROOT / "tests" / "golden" / "wire_v1.json"


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(command, cwd=ROOT, env={**os.environ, "PATH": path}, capture_output=True, text=True)


def _buf(*arguments: str) -> subprocess.CompletedProcess[str]:
    beside_python = Path(sys.executable).with_name("buf")
    command = str(beside_python) if beside_python.exists() else shutil.which("buf")
    if command is None:
        pytest.skip("buf is not installed; run: make install")
    return _run(command, *arguments)


def test_the_proto_files_pass_buf_lint() -> None:
    result = _buf("lint", "proto")
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_proto_files_are_formatted() -> None:
    result = _buf("format", "--diff", "--exit-code", "proto")
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_wire_is_compatible_with_the_last_release() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: the last release cannot be looked up")
    tag = _run("git", "describe", "--tags", "--abbrev=0", "--match", "v*")
    if tag.returncode != 0:
        pytest.skip("no release tag exists yet: nothing to be compatible with")
    result = _buf("breaking", "proto", "--against", f".git#tag={tag.stdout.strip()},subdir=proto")
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_generated_code_is_up_to_date(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools")
    environment = {**os.environ, "PYTHON": sys.executable}
    subprocess.run(["bash", "proto/generate.sh", str(tmp_path)], cwd=ROOT, env=environment, check=True)
    fresh = {path.name: path.read_text() for path in (tmp_path / "longturn" / "v1").iterdir()}
    assert len(fresh) == 16
    for name, text in fresh.items():
        committed = (ROOT / "longturn" / "v1" / name).read_text()
        diff = "\n".join(
            difflib.unified_diff(committed.splitlines(), text.splitlines(), name, "fresh", lineterm="", n=0)
        )
        assert not diff, f"run `make proto`\n{diff}"
    reference = Path("docs") / "wire-reference.md"
    assert (ROOT / reference).read_text() == (tmp_path / reference).read_text(), "run `make proto`"


def _messages() -> dict[str, Message]:
    won = StepResult(
        observation="You pick up the coin.",
        reward=1.0,
        episode_return=1.0,
        score=1.0,
        success=True,
        status=EpisodeStatus.TERMINATED,
        turn_index=31,
        progress=1.0,
        oracle_action="take coin",
        state_hash=b"\x07",
        admissible_actions=("take coin",),
        extras={"inventory": "a coin"},
        rebuilt=True,
    )
    trajectory = make_trajectory()
    assert trajectory.identity is not None
    return {
        "StartEpisodeRequest": environment_pb2.StartEpisodeRequest(
            request_id="r1", task=task_to_proto(make_task()), seed=3, max_turns=50, with_progress=True, client_id="c"
        ),
        "PlayRequest": environment_pb2.PlayRequest(
            calls=[
                environment_pb2.PlayCall(
                    call_id=9,
                    step=environment_pb2.StepRequest(
                        episode_id="e", episode_token="t", turn_index=30, action="take coin"
                    ),
                )
            ]
        ),
        "PlayResponse": environment_pb2.PlayResponse(
            replies=[environment_pb2.PlayReply(call_id=9, step=step_result_to_proto(won))]
        ),
        "Trajectory": trajectory_to_proto(trajectory),
        "GroupAssignment": dispatch_pb2.GroupAssignment(
            group_id="g0",
            attempt=1,
            task=task_to_proto(make_task()),
            seed=3,
            member_indices=[0, 2],
            sampling_seeds=[17, 19],
            purpose=dispatch_pb2.PURPOSE_TRAIN,
            group_size=8,
            max_policy_version=4,
            task_kind="coin_collector/116",
        ),
        "SubmitTrajectory": dispatch_pb2.SubmitTrajectory(
            trajectory=b"\x01", identity=identity_to_proto(trajectory.identity)
        ),
        "PolicyAnnouncement": dispatch_pb2.PolicyAnnouncement(
            policy_version=4,
            run_epoch=1,
            engines=[
                dispatch_pb2.EngineEndpoint(
                    url="http://127.0.0.1:30000", policy_version=4, api_key="k", cache_salt="v4"
                )
            ],
        ),
        "GetStatusResponse": status_pb2.GetStatusResponse(
            daemon="learner",
            phase="waiting",
            pid=5,
            uptime_s=1.5,
            waits=[status_pb2.Wait(peer="actors", reason="first group", waited_s=0.5, budget_s=60)],
            values={"learner/group/kept": 5.0},
            facts={"run_id": "run"},
        ),
    }


@pytest.mark.parametrize("name", sorted(_messages()))
def test_version_1_messages_keep_their_bytes(name: str) -> None:
    golden = json.loads(GOLDEN_BYTES.read_text())
    message = _messages()[name]
    assert message.SerializeToString(deterministic=True).hex() == golden[name]
    assert type(message).FromString(bytes.fromhex(golden[name])) == message


def test_every_dispatch_message_travels_in_an_envelope() -> None:
    for field in dispatch_pb2.Envelope.DESCRIPTOR.oneofs_by_name["body"].fields:
        assert field.message_type is not None
        body = getattr(dispatch_pb2, field.message_type.name)()
        assert type(unwrap(wrap(body))) is type(body)


if __name__ == "__main__":
    # Only after a change that CHANGELOG names under "Wire": python -m tests.test_contract
    texts = {name: message.SerializeToString(deterministic=True).hex() for name, message in sorted(_messages().items())}
    GOLDEN_BYTES.write_text(json.dumps(texts, indent=1) + "\n")
