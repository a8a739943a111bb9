"""What trains, put together from the settings: the same for a learner with pools, a rank that follows, and a replay."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import torch

from learner.checkpoint import (
    Resumed,
    choose_checkpoint,
    load_state,
    restore_adapter,
    restore_critic,
    restore_optimizer,
)
from learner.checkpoint_files import FoundCheckpoint, found_at
from learner.config import LearnConfig
from learner.critic.interface import Critic
from learner.critic_options import make_critic
from learner.desk import TrainingDesk
from learner.lora import add_adapter
from learner.measure_board import MeasureBoard
from learner.model import PolicyModel
from learner.options import batch_options, group_filter, history_options, pass_options, update_options
from learner.passes import PassOptions
from learner.phases import Parts
from learner.publisher import Publisher
from learner.ranks import ALONE, Ranks
from learner.reference import BaseReference, Reference, load_reference
from learner.silent import SilentBoard, SilentDesk, SilentPublisher
from learner.state import TrainerState
from longturn.status import StatusBoard
from longturn.task_file import read_tasks

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Weights and optimizers."""

    model: PolicyModel
    optimizer: torch.optim.Optimizer
    critic: Critic
    reference: Reference | BaseReference | None


def chosen_checkpoint(config: LearnConfig, resume: str) -> Resumed | None:
    """The checkpoint to go on from, by the rule `resume`; None to begin."""
    chosen = choose_checkpoint(config.run_dir / "checkpoints", resume, on_damage=config.checkpoint.on_damage)
    if chosen is None:
        return None
    resumed = _read(chosen, config)
    logger.info(
        "resuming",
        extra={"checkpoint": chosen.path, "training_step": chosen.training_step, "batches": chosen.batches_consumed},
    )
    if resumed.num_batches != config.batch.num_batches:
        logger.warning(
            "the planned number of batches changed; beta and a decaying learning rate follow the new one",
            extra={"before": resumed.num_batches, "now": config.batch.num_batches},
        )
    return resumed


def resumed_from(path: Path, config: LearnConfig) -> Resumed:
    """A checkpoint that another rank has chosen."""
    return _read(found_at(path), config)


def _read(chosen: FoundCheckpoint, config: LearnConfig) -> Resumed:
    return load_state(chosen, history_options(config))


def load_training(config: LearnConfig, resumed: Resumed | None, ranks: Ranks = ALONE) -> Training:
    """Weights and optimizers as the checkpoint has them, or as training starts."""
    torch.set_num_threads(config.model.num_threads)
    torch.manual_seed(config.seed)
    passes = pass_options(config, ranks)
    model = _policy(config, resumed, passes)
    model.check_fits(config.play.max_episode_tokens)
    optimizer = _optimizer(config, model)
    critic = make_critic(config, model, passes=passes)
    if resumed is not None:
        restore_optimizer(resumed.path, model=model, optimizer=optimizer)
        restore_critic(resumed.path, critic)
    return Training(model=model, optimizer=optimizer, critic=critic, reference=_reference(config, model, passes))


def _policy(config: LearnConfig, resumed: Resumed | None, passes: PassOptions) -> PolicyModel:
    if not config.lora.rank:
        # Weights come from the checkpoint; what the tokenizer is, from either.
        source = resumed.path if resumed else config.model.path
        return PolicyModel.load(source, device=config.model.device, passes=passes)
    # A checkpoint's own weights hold the adapter already: the frozen ones are those that training started from.
    model = PolicyModel.load(config.model.path, device=config.model.device, passes=passes)
    model.adopt(add_adapter(model.module, config.lora, seed=config.seed))
    if resumed is not None:
        restore_adapter(resumed.path, model)
    return model


def _optimizer(config: LearnConfig, model: PolicyModel) -> torch.optim.Optimizer:
    settings = config.optimizer
    return torch.optim.AdamW(
        [parameter for _, parameter in model.trainable],
        lr=settings.learning_rate,
        betas=(settings.beta1, settings.beta2),
        eps=settings.epsilon,
        weight_decay=settings.weight_decay,
    )


def _reference(config: LearnConfig, model: PolicyModel, passes: PassOptions) -> Reference | BaseReference | None:
    reference = config.reference
    if reference.kl == "none":
        return None
    if model.adapter is not None and reference.path is None:
        return BaseReference(model, model.adapter)
    folder = reference.path or config.model.path
    return load_reference(folder, model, device=config.model.device, offload=reference.offload, passes=passes)


def trainer_state(config: LearnConfig, resumed: Resumed | None, run_id: str) -> TrainerState:
    """The state of a checkpoint, or of a run that has not trained yet."""
    return resumed.state if resumed else TrainerState.fresh(run_id, history_options(config))


def make_parts(
    config: LearnConfig,
    training: Training,
    state: TrainerState,
    *,
    desk: TrainingDesk | SilentDesk,
    publisher: Publisher | SilentPublisher,
    board: MeasureBoard | SilentBoard,
    status: StatusBoard,
    run_epoch: int = 0,
    pending_evaluations: list[int] | None = None,
) -> Parts:
    """The parts of the training loop; who made the collaborators closes them."""
    model = training.model
    return Parts(
        config=config,
        state=state,
        run_epoch=run_epoch,
        model=model,
        optimizer=training.optimizer,
        critic=training.critic,
        update_options=update_options(config, tokenizer_folder=model.folder),
        batch_options=batch_options(config, vocabulary_size=model.vocabulary_size),
        group_filter=group_filter(config, state.running_scores),
        reference=training.reference,
        desk=desk,
        publisher=publisher,
        board=board,
        status=status,
        pending_evaluations=pending_evaluations or [],
        panel=read_tasks(config.evaluation.path)[: config.evaluation.num_tasks] if config.evaluation.path else (),
    )
