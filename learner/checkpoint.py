"""Checkpoints: weights, optimizer, random state and trainer state, in safetensors and JSON only.

The newest complete checkpoint alone says what is trained; the ledger is brought in line with it at every start.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from learner.checkpoint_files import (
    STATE_FILE,
    CheckpointError,
    FoundCheckpoint,
    abandon,
    find_checkpoints,
    found_at,
    prune,
    resumable_folders,
    verify,
    writing,
)
from learner.critic.interface import NO_CRITIC, Critic
from learner.losses.entropy_history import HistoryOptions
from learner.model import PolicyModel
from learner.state import TrainerState
from longturn.completion import sha256_of
from longturn.disk import DiskError, read_json
from longturn.errors import ConfigError

logger = logging.getLogger(__name__)
# In a folder of their own: engines load every safetensors file that lies beside a model.
_TRAINER_FOLDER = "trainer"
_OPTIMIZER_FILE = f"{_TRAINER_FOLDER}/optimizer.safetensors"
_RNG_FILE = f"{_TRAINER_FOLDER}/rng.safetensors"
_ADAPTER_FILE = f"{_TRAINER_FOLDER}/adapter.safetensors"
_CRITIC_FILE = f"{_TRAINER_FOLDER}/critic.safetensors"


def save_checkpoint(
    folder: Path,
    *,
    state: TrainerState,
    model: PolicyModel,
    optimizer: torch.optim.Optimizer,
    num_batches: int,
    keep: int,
    critic: Critic = NO_CRITIC,
) -> None:
    """Write a checkpoint of this state unless it exists, then remove old ones."""
    known = {(found.training_step, found.batches_consumed) for found in find_checkpoints(folder)}
    if (state.training_step, state.batches_consumed) in known:
        return
    with writing(folder, state.training_step, batches_consumed=state.batches_consumed) as partial:
        model.save(partial)
        (partial / _TRAINER_FOLDER).mkdir()
        save_file(_optimizer_tensors(model, optimizer), partial / _OPTIMIZER_FILE)
        save_file({"torch": torch.get_rng_state()}, partial / _RNG_FILE)
        if model.adapter is not None:
            save_file(model.adapter.to_tensors(), partial / _ADAPTER_FILE, metadata=_base_of(model))
        if critic_tensors := critic.to_tensors():
            save_file(critic_tensors, partial / _CRITIC_FILE)
        content = {**state.to_json(), "num_batches": num_batches}
        (partial / STATE_FILE).write_text(json.dumps(content, indent=1), encoding="utf-8")
    prune(folder, keep=keep)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """A checkpoint that was read."""

    path: Path
    state: TrainerState
    num_batches: int


def choose_checkpoint(folder: Path, resume: str, *, on_damage: str) -> FoundCheckpoint | None:
    """The checkpoint to start from by the rule `resume`: auto (the newest complete one), never, or a path.

    A damaged one raises CheckpointError; with `on_damage = previous` it is passed over with a warning, and only if none
    is left that is an error. Newer ones than the chosen, and those whose marker does not tell, are set aside: their
    history ends here.
    """
    present = resumable_folders(folder)
    if resume == "never" and present:
        raise ConfigError(f"{folder.parent} holds a run; resume it with --resume auto, or name another run folder")
    wanted = present if resume == "auto" else [path for path in present if path.resolve() == Path(resume).resolve()]
    if not wanted:
        if resume not in ("auto", "never"):
            raise ConfigError(f"--resume {resume} is no complete checkpoint in {folder}")
        return None
    known: list[FoundCheckpoint] = []
    for path in present:
        with _passing_over(path, on_damage):
            known.append(found_at(path))
    for found in sorted(known, reverse=True):
        if found.path in wanted:
            with _passing_over(found.path, on_damage):
                verify(found.path)
                _set_aside_others(folder, present, known, found)
                return found
    raise CheckpointError(
        f"all that could be resumed in {folder} is damaged, the log says how; restore a checkpoint, or start another "
        "run folder (learner.run_dir)"
    )


@contextmanager
def _passing_over(path: Path, on_damage: str) -> Iterator[None]:
    """End the block at damage, with a warning; under the rule `error` the damage is raised."""
    try:
        yield
    except CheckpointError as error:
        if on_damage == "error":
            raise
        logger.warning("damaged checkpoint passed over", extra={"path": path, "error": str(error)})


def _set_aside_others(
    folder: Path, present: Sequence[Path], known: Sequence[FoundCheckpoint], chosen: FoundCheckpoint
) -> None:
    kept = {found.path for found in known if found.batches_consumed <= chosen.batches_consumed}
    for path in present:
        if path not in kept:
            logger.warning("checkpoint set aside", extra={"path": abandon(folder, path)})


def load_state(chosen: FoundCheckpoint, history_options: HistoryOptions) -> Resumed:
    """Read the trainer state of a checkpoint; CheckpointError if it does not say what it must."""
    try:
        content = read_json(chosen.path / STATE_FILE, mend="restore it")
        return Resumed(
            path=chosen.path,
            state=TrainerState.from_json(content, history_options),
            num_batches=content["num_batches"],
        )
    except (ConfigError, DiskError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{chosen.path / STATE_FILE} cannot be read: {error!r}; if another version of longturn wrote it, resume "
            "with that one"
        ) from error


def restore_optimizer(path: Path, *, model: PolicyModel, optimizer: torch.optim.Optimizer) -> None:
    """Give the optimizer and torch's generator the state they had."""
    try:
        tensors = load_file(path / _OPTIMIZER_FILE)
        torch.set_rng_state(load_file(path / _RNG_FILE)["torch"])
    except (OSError, SafetensorError, KeyError, TypeError, RuntimeError) as error:  # the last two by set_rng_state
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    index_by_name = {name: index for index, (name, _) in enumerate(model.trainable)}
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        name, _, part = key.rpartition("/")
        if name not in index_by_name:
            raise CheckpointError(
                f"{path / _OPTIMIZER_FILE} holds {key!r}, of a parameter that the model has not; restore the"
                " checkpoint, or resume with the model that it was made of"
            )
        state.setdefault(index_by_name[name], {})[part] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def restore_adapter(path: Path, model: PolicyModel) -> None:
    """Give the model's adapter the tensors it had.

    CheckpointError if the checkpoint has none, or one of another form; ConfigError if it was trained beside other
    weights than those of the model.
    """
    if model.adapter is None:
        raise ValueError("the model has no adapter")
    file = path / _ADAPTER_FILE
    try:
        with safe_open(file, framework="pt") as opened:
            metadata = opened.metadata()
        model.adapter.restore(load_file(file))
    except (OSError, SafetensorError, ValueError) as error:
        raise CheckpointError(
            f"{file} cannot be read: {error}; resume with the learner.lora that wrote it, or start another run folder "
            "(learner.run_dir)"
        ) from error
    if metadata != _base_of(model):
        raise ConfigError(
            f"learner.model.path: the weights in {model.folder} are not those that the adapter of {path} was trained "
            "beside; restore them"
        )


def _base_of(model: PolicyModel) -> dict[str, str]:
    """Digests of the frozen weights an adapter belongs to."""
    return {file.name: sha256_of(file) for file in sorted(model.folder.glob("*.safetensors"))}


def restore_critic(path: Path, critic: Critic) -> None:
    """Give a critic the parameters and optimizer state it had; CheckpointError if the checkpoint has no such one."""
    if not critic.to_tensors():
        return
    try:
        critic.restore(load_file(path / _CRITIC_FILE))
    except (OSError, SafetensorError, ValueError) as error:
        raise CheckpointError(
            f"{path / _CRITIC_FILE} cannot be read: {error}; resume with the learner.advantage.estimator and the "
            "learner.critic that wrote it, or start another run folder (learner.run_dir)"
        ) from error


def _optimizer_tensors(model: PolicyModel, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Every tensor of the optimizer under its parameter's name."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in model.trainable:
        for part, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{name}/{part}"] = value.contiguous()
    return tensors
