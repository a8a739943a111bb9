"""Checkpoint folders: complete or not there, ordered by number, damage found."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from learner.checkpoint import choose_checkpoint, load_state, restore_optimizer, save_checkpoint
from learner.checkpoint_files import CheckpointError, find_checkpoints, prune, verify, writing
from learner.losses.entropy_history import HistoryOptions
from learner.model import PolicyModel
from learner.state import TrainerState
from longturn.disk import DiskError
from longturn.errors import ConfigError, LongturnError
from longturn.records import Trajectory
from tests.support.full_disk import largest_file
from tests.support.learner_run import audited, small_config, train_with_pool
from tests.support.scripted_pool import Member, made_up

ROOT = Path(__file__).parents[2]


def write(folder: Path, step: int, batches: int | None = None) -> Path:
    with writing(folder, step, batches_consumed=step if batches is None else batches) as partial:
        (partial / "state.json").write_text(json.dumps({"step": step}))
        (partial / "weights").write_bytes(bytes(1000))
    return find_checkpoints(folder)[-1].path


def test_the_newest_is_the_one_with_the_highest_number(tmp_path: Path) -> None:
    for step in (100, 9, 10):
        write(tmp_path, step)
    os.utime(tmp_path / "step-000009")
    chosen = choose_checkpoint(tmp_path, "auto", on_damage="error")
    assert chosen is not None
    assert chosen.training_step == 100
    assert [found.training_step for found in find_checkpoints(tmp_path)] == [9, 10, 100]


def test_folders_without_a_marker_are_no_checkpoints(tmp_path: Path) -> None:
    write(tmp_path, 1)
    (write(tmp_path, 2) / "COMPLETE").unlink()
    (tmp_path / ".step-000003.partial").mkdir()
    assert [found.training_step for found in find_checkpoints(tmp_path)] == [1]


def test_a_failed_write_leaves_the_old_state(tmp_path: Path) -> None:
    write(tmp_path, 1)

    def fill_the_disk() -> None:
        with writing(tmp_path, 2, batches_consumed=2) as partial:
            (partial / "half").write_bytes(b"x")
            raise OSError("disk full")

    with pytest.raises(DiskError, match=r"step-000002 cannot be written: disk full; free space, then start again"):
        fill_the_disk()
    assert [path.name for path in tmp_path.iterdir()] == ["step-000001"]


def test_weights_that_find_no_room_leave_the_checkpoint_before(tmp_path: Path, model_dir: Path) -> None:
    model = PolicyModel.load(model_dir)
    optimizer = torch.optim.AdamW(model.module.parameters())
    write(tmp_path, 1)
    state = TrainerState(run_id="run", training_step=2, batches_consumed=2)
    with largest_file(20_000), pytest.raises(DiskError, match="step-000002 cannot be written"):
        save_checkpoint(tmp_path, state=state, model=model, optimizer=optimizer, num_batches=9, keep=2)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000001"]


def test_a_run_whose_disk_fills_up_goes_on_from_its_last_checkpoint(
    tmp_path: Path, model_dir: Path, task_path: Path
) -> None:
    config = small_config(tmp_path / "run", model_dir, task_path)
    disk = ExitStack()

    def script(member: Member) -> Trajectory:
        if member.policy_version == 1:
            disk.enter_context(largest_file(20_000))
        return made_up(member)

    with disk, pytest.raises(LongturnError, match=r"cannot be written.*start again"):
        train_with_pool(config, script)
    assert train_with_pool(config)[0] == "COMPLETED"
    assert audited(config.run_dir).num_batches == 3


def test_two_checkpoints_of_one_step_are_told_apart_by_their_batches(tmp_path: Path) -> None:
    write(tmp_path, 4, batches=4)
    write(tmp_path, 4, batches=7)
    assert [found.batches_consumed for found in find_checkpoints(tmp_path)] == [4, 7]


def test_damage_is_an_error_that_names_the_file_or_by_rule_the_one_before_is_taken(tmp_path: Path) -> None:
    write(tmp_path, 1)
    newest = write(tmp_path, 2)
    (newest / "weights").write_bytes(b"short")
    with pytest.raises(CheckpointError, match="weights is missing or does not match"):
        choose_checkpoint(tmp_path, "auto", on_damage="error")
    chosen = choose_checkpoint(tmp_path, "auto", on_damage="previous")
    assert chosen is not None
    assert chosen.training_step == 1
    assert [found.training_step for found in find_checkpoints(tmp_path)] == [1]
    assert (tmp_path / "abandoned-000-step-000002").is_dir()


@pytest.mark.parametrize(
    "marker", ["{", "[]", '{"sha256": 1}', '{"sha256": {}}', '{"sha256": {}, "batches_consumed": "2"}']
)
def test_a_damaged_marker_is_an_error_or_by_rule_the_checkpoint_before_is_taken(tmp_path: Path, marker: str) -> None:
    first = write(tmp_path, 1)
    (write(tmp_path, 2) / "COMPLETE").write_text(marker)
    with pytest.raises(CheckpointError, match=r"step-000002.* is damaged.*learner\.checkpoint\.on_damage=previous"):
        choose_checkpoint(tmp_path, "auto", on_damage="error")
    chosen = choose_checkpoint(tmp_path, "auto", on_damage="previous")
    assert chosen is not None
    assert chosen.path == first
    assert [found.training_step for found in find_checkpoints(tmp_path)] == [1]
    assert (tmp_path / "abandoned-000-step-000002").is_dir()


def test_a_marker_without_its_number_is_never_taken_for_the_oldest(tmp_path: Path) -> None:
    newest = [write(tmp_path, step) for step in (1, 2, 3)][-1]
    marker = json.loads((newest / "COMPLETE").read_text())
    del marker["batches_consumed"]
    (newest / "COMPLETE").write_text(json.dumps(marker))
    with pytest.raises(CheckpointError, match="how many batches"):
        prune(tmp_path, keep=1)
    assert newest.is_dir()


@pytest.mark.parametrize("resume", ["auto", "step-000002"])
def test_damage_without_anything_before_it_never_starts_the_run_anew(tmp_path: Path, resume: str) -> None:
    if resume != "auto":
        write(tmp_path, 1)
        resume = str(tmp_path / resume)
    (write(tmp_path, 2) / "weights").write_bytes(b"short")
    for _ in range(2):
        with pytest.raises(CheckpointError, match="restore a checkpoint"):
            choose_checkpoint(tmp_path, resume, on_damage="previous")


def test_a_damaged_run_is_still_a_run(tmp_path: Path) -> None:
    (write(tmp_path, 2) / "COMPLETE").write_text("{")
    with pytest.raises(ConfigError, match="another run folder"):
        choose_checkpoint(tmp_path, "never", on_damage="previous")


def test_resume_rules(tmp_path: Path) -> None:
    assert choose_checkpoint(tmp_path, "auto", on_damage="error") is None
    assert choose_checkpoint(tmp_path, "never", on_damage="error") is None
    path = write(tmp_path, 3)
    write(tmp_path, 5)
    with pytest.raises(ConfigError, match="another run folder"):
        choose_checkpoint(tmp_path, "never", on_damage="error")
    with pytest.raises(ConfigError, match="no complete checkpoint"):
        choose_checkpoint(tmp_path, str(tmp_path / "step-000004"), on_damage="error")
    chosen = choose_checkpoint(tmp_path, str(path), on_damage="error")
    assert chosen is not None
    assert chosen.training_step == 3


def test_old_ones_are_pruned_by_number(tmp_path: Path) -> None:
    for step in (1, 20, 3):
        write(tmp_path, step)
    prune(tmp_path, keep=2)
    assert [found.training_step for found in find_checkpoints(tmp_path)] == [3, 20]


def test_weights_optimizer_and_state_come_back_to_the_bit(tmp_path: Path, model_dir: Path) -> None:
    model = PolicyModel.load(model_dir)
    optimizer = torch.optim.AdamW(model.module.parameters(), lr=1e-3)
    for _ in range(2):
        model.hidden((1, 2, 3)).sum().backward()
        optimizer.step()
    state = TrainerState(run_id="run", training_step=2, batches_consumed=3)
    state.entropy_history = state.entropy_history.appended(0.5)
    state.wall_s["update"] = 1.5
    save_checkpoint(tmp_path, state=state, model=model, optimizer=optimizer, num_batches=9, keep=2)
    chosen = choose_checkpoint(tmp_path, "auto", on_damage="error")
    assert chosen is not None
    # Engines load every safetensors file that they find beside the configuration.
    assert [path.name for path in chosen.path.glob("*.safetensors")] == ["model.safetensors"]
    again = PolicyModel.load(chosen.path)
    other = torch.optim.AdamW(again.module.parameters(), lr=1e-3)
    restore_optimizer(chosen.path, model=again, optimizer=other)
    assert load_state(chosen, HistoryOptions()).state == state
    for loaded, loaded_optimizer in ((model, optimizer), (again, other)):
        loaded.module.zero_grad()
        loaded.hidden((4, 5)).sum().backward()
        loaded_optimizer.step()
    for ours, theirs in zip(model.module.parameters(), again.module.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_state_of_another_version_is_a_clear_error(tmp_path: Path) -> None:
    write(tmp_path, 1)
    with pytest.raises(CheckpointError, match=r"state\.json cannot be read"):
        load_state(find_checkpoints(tmp_path)[0], HistoryOptions())


def test_a_reason_to_end_that_nobody_knows_is_a_clear_error(tmp_path: Path) -> None:
    state = TrainerState(run_id="run").to_json() | {"skip_reason": "BORED"}
    with pytest.raises(ValueError, match="BORED"):
        TrainerState.from_json(state, HistoryOptions())


@pytest.mark.parametrize("tensor", ["foreign.weight/exp_avg", "nothing"])
def test_the_state_of_a_foreign_parameter_is_a_clear_error(tmp_path: Path, model_dir: Path, tensor: str) -> None:
    model = PolicyModel.load(model_dir)
    optimizer = torch.optim.AdamW(model.module.parameters())
    state = TrainerState(run_id="run", training_step=1, batches_consumed=1)
    save_checkpoint(tmp_path, state=state, model=model, optimizer=optimizer, num_batches=9, keep=2)
    path = find_checkpoints(tmp_path)[0].path
    file = path / "trainer" / "optimizer.safetensors"
    save_file({tensor: torch.zeros(2)}, file)
    with pytest.raises(CheckpointError, match=rf"{file.name} holds '{tensor}'"):
        restore_optimizer(path, model=model, optimizer=optimizer)


SAVER = """
    import sys
    from pathlib import Path
    from learner.checkpoint_files import prune, writing
    folder, step = Path(sys.argv[1]), int(sys.argv[2])
    while True:
        step += 1
        with writing(folder, step, batches_consumed=step) as partial:
            for name in ("a", "b", "c"):
                (partial / name).write_bytes(bytes([step % 256]) * 100_000)
        prune(folder, keep=2)
        print(step, flush=True)
"""


def test_a_kill_in_the_save_window_always_leaves_a_good_checkpoint(tmp_path: Path) -> None:
    order = random.Random(0)
    for _ in range(12):
        newest = find_checkpoints(tmp_path)
        step = newest[-1].training_step if newest else 0
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(SAVER), str(tmp_path), str(step)], cwd=ROOT, stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        process.stdout.readline()
        # A busy loop instead of a clock: the kill lands anywhere inside a save.
        for _ in range(order.randrange(200_000)):
            pass
        process.send_signal(signal.SIGKILL)
        process.wait(20)
        process.stdout.close()
        found = find_checkpoints(tmp_path)
        assert found[-1].training_step > step
        verify(found[-1].path)
