"""Fixtures of the learner's tests."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from longturn.records import Task
from longturn.task_file import TaskEntry, write_tasks
from tests.support.tiny_model import write_tiny_model


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model's folder."""
    return write_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def task_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A task file of seven tasks of two kinds."""
    path = tmp_path_factory.mktemp("tasks") / "train.jsonl"
    write_tasks(
        path,
        [
            TaskEntry(task=Task(environment="scripted", task_id=f"task-{index}"), seed=index, kind=f"kind-{index % 2}")
            for index in range(7)
        ],
    )
    return path
