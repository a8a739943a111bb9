"""Builds the learner's parts, runs the loop, and closes what was opened. Called once the configuration is parsed."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from contextlib import ExitStack
from pathlib import Path

from learner.assembly import chosen_checkpoint, load_training, make_parts, trainer_state
from learner.assigner import Assigner, DispatchRules
from learner.broadcast import BroadcastTransport
from learner.checkpoint import Resumed
from learner.config import EngineConfig, LearnConfig, PublishConfig
from learner.desk import StopRequested, TrainingDesk
from learner.dispatcher import Dispatcher
from learner.distributed.desks import LeaderDesk
from learner.distributed.follow import follow
from learner.distributed.group import GroupRanks, RankLostError, joined, with_own_device
from learner.engine_client import DiskTransport, EngineClient, Transport, UpdateRules
from learner.engines import EngineRegistry
from learner.ledger.store import Ledger
from learner.ledger.tasks import TaskSchedule
from learner.loop import run
from learner.measure_board import MeasureBoard, open_tensorboard
from learner.model import PolicyModel
from learner.phases import Parts, save, wait_for_evaluations
from learner.publisher import Publisher
from learner.ranks import Ranks
from learner.signals import stop_signals
from learner.state import EndReason
from learner.summary import write_summary
from longturn.config import config_digest
from longturn.dispatch import DispatchRouter, SocketLimits
from longturn.errors import ConfigError
from longturn.metrics import Metrics, MetricsServer
from longturn.ready import write_ready
from longturn.run_folder import held_folder
from longturn.status import StatusBoard, StatusServer
from longturn.task_file import read_tasks
from longturn.v1 import dispatch_pb2

logger = logging.getLogger(__name__)
_LEAVE_WAIT_S = 10.0


def learn(config: LearnConfig, *, resume: str, ready_file: Path | None) -> EndReason:
    """Run the learner to its end; the reason it ended. Under torchrun all ranks call this, and one of them leads."""
    with joined(config) as ranks, stop_signals() as stop:
        own = with_own_device(config)
        try:
            if isinstance(ranks, GroupRanks) and not ranks.is_leader:
                return follow(own, ranks, stop)
            return _lead(own, ranks, stop, resume=resume, ready_file=ready_file)
        except RankLostError:
            # All were asked to stop, and another rank was faster.
            if stop.is_set():
                return EndReason.STOPPED
            raise


def _lead(
    config: LearnConfig, ranks: Ranks, stop: threading.Event, *, resume: str, ready_file: Path | None
) -> EndReason:
    started_s = time.monotonic()
    with ExitStack() as stack:
        refusal = f"another learner runs in {config.run_dir}; stop it, or set learner.run_dir"
        stack.enter_context(held_folder(config.run_dir, "learner.lock", refusal=refusal))
        parts = _Session(config, stack, stop).build(resume, ready_file, ranks)
        reason = _train_to_the_end(parts)
        write_summary(parts, reason=reason, wall_s=time.monotonic() - started_s)
    return reason


def _train_to_the_end(parts: Parts) -> EndReason:
    try:
        reason = run(parts)
        wait_for_evaluations(parts)
        save(parts)
        parts.status.set_phase("draining")
        parts.desk.end(reason, wait_s=_LEAVE_WAIT_S)
    except StopRequested as request:
        logger.warning("stopped", extra={"training_step": parts.state.training_step, "hint": str(request)})
        return EndReason.STOPPED
    logger.info("run ended", extra={"reason": reason.value, "training_step": parts.state.training_step})
    return reason


class _Session:
    """Opens the parts in order; the stack closes them in reverse."""

    def __init__(self, config: LearnConfig, stack: ExitStack, stop: threading.Event) -> None:
        self._config = config
        self._stack = stack
        self._stop = stop
        self._metrics = Metrics()
        self._status = StatusBoard("learner", self._metrics)
        self._run_epoch = 0

    def build(self, resume: str, ready_file: Path | None, ranks: Ranks) -> Parts:
        config = self._config
        self._warn_of_bias()
        resumed = chosen_checkpoint(config, resume)
        if isinstance(ranks, GroupRanks):
            ranks.tell(str(resumed.path.resolve()) if resumed else None)
        training = load_training(config, resumed, ranks)
        dispatcher = self._dispatcher(training.model, resumed)
        run_id = dispatcher.call(lambda desk: desk.ledger.run_id)
        state = trainer_state(config, resumed, run_id)
        if state.run_id != run_id:
            raise ConfigError(f"the checkpoint is of run {state.run_id}, the ledger in {config.run_dir} of {run_id}")
        desk = self._desk(dispatcher, ranks)
        if isinstance(ranks, GroupRanks):
            ranks.tell(run_id)
        pending_evaluations = desk.pending_evaluations()
        self._serve(dispatcher, run_id, ready_file)
        return make_parts(
            config,
            training,
            state,
            desk=desk,
            publisher=self._publisher(training.model, desk),
            board=self._board(),
            status=self._status,
            run_epoch=self._run_epoch,
            pending_evaluations=pending_evaluations,
        )

    def _desk(self, dispatcher: Dispatcher, ranks: Ranks) -> TrainingDesk:
        if isinstance(ranks, GroupRanks):
            return LeaderDesk(dispatcher, self._status, self._stop, ranks)
        return TrainingDesk(dispatcher, self._status, self._stop)

    def _warn_of_bias(self) -> None:
        if self._config.off_policy.accept_bias:
            logger.warning(
                "off_policy.accept_bias: updates may be biased by stale data",
                extra={"mode": self._config.off_policy.mode, "max_policy_lag": self._config.batch.max_policy_lag},
            )

    def _dispatcher(self, model: PolicyModel, resumed: Resumed | None) -> Dispatcher:
        config = self._config
        digest = config_digest(config)
        entries = read_tasks(config.tasks.path)
        schedule = TaskSchedule(entries, run_seed=config.seed, is_shuffled=config.tasks.order == "shuffled")
        facts = {
            "seed": str(config.seed),
            "batch.groups_per_step": str(config.batch.groups_per_step),
            "batch.group_size": str(config.batch.group_size),
            "tasks.order": config.tasks.order,
            "tasks.path (its content)": hashlib.sha256(config.tasks.path.read_bytes()).hexdigest()[:16],
        }
        rules = self._dispatch_rules(model, digest)

        def open_ledger() -> Ledger:
            ledger = Ledger(
                config.run_dir / "ledger.db",
                facts=facts,
                groups_per_step=config.batch.groups_per_step,
                group_size=config.batch.group_size,
                max_slot_failures=config.batch.max_slot_failures,
                task_of_slot=schedule.entry,
                must_exist=resumed is not None,
                task_of_refill=schedule.refill,
            )
            if config.batch.max_refill and not ledger.can_refill:
                ledger.close()
                raise ConfigError(
                    f"the ledger in {config.run_dir} was made before learner.batch.max_refill was known: set it to 0, "
                    "or start another run folder"
                )
            return ledger

        def make_assigner(ledger: Ledger) -> Assigner:
            if resumed is None:
                ledger.refuse_lost_checkpoints(config.run_dir / "checkpoints")
            self._run_epoch = ledger.start_epoch(
                training_step=resumed.state.training_step if resumed else 0,
                batches_consumed=resumed.state.batches_consumed if resumed else 0,
                config_digest=digest,
            )
            return Assigner(ledger, rules, self._metrics, run_epoch=self._run_epoch)

        limits = SocketLimits(
            max_message_bytes=config.dispatch.max_message_bytes, queue_messages=config.dispatch.queue_messages
        )
        dispatcher = Dispatcher(
            open_ledger=open_ledger,
            open_router=lambda: DispatchRouter(config.dispatch_address, limits=limits),
            make_assigner=make_assigner,
            metrics=self._metrics,
        )
        self._stack.callback(dispatcher.close)
        return dispatcher

    def _dispatch_rules(self, model: PolicyModel, digest: str) -> DispatchRules:
        config, play = self._config, self._config.play
        return DispatchRules(
            run_seed=config.seed,
            groups_per_step=config.batch.groups_per_step,
            max_policy_lag=config.batch.max_policy_lag,
            num_batches=config.batch.num_batches,
            config_digest=digest,
            tokenizer_hash=model.tokenizer_hash,
            vocabulary_size=model.vocabulary_size,
            max_row_tokens=config.model.max_row_tokens,
            heartbeat_s=config.dispatch.heartbeat_s,
            pool_timeout_s=config.dispatch.pool_timeout_s,
            eval_temperature=config.evaluation.temperature,
            require_engine=config.publish.require_engine,
            play=dispatch_pb2.PlayRules(
                temperature=play.temperature,
                max_new_tokens=play.max_new_tokens,
                max_turns=play.max_turns,
                max_episode_tokens=play.max_episode_tokens,
                max_episode_s=play.max_episode_s,
                max_group_s=play.max_group_s,
                with_progress=play.with_progress,
                max_member_retries=play.max_member_retries,
            ),
        )

    def _publisher(self, model: PolicyModel, desk: TrainingDesk) -> Publisher:
        settings = self._config.publish
        if settings.require_engine and not settings.engines:
            raise ConfigError(
                "learner.publish.engines is empty: name at least one engine, such as "
                "--set 'learner.publish.engines=[{url=\"http://127.0.0.1:30000\"}]'"
            )
        registry = EngineRegistry(
            [EngineClient(engine.url, _read_key(engine)) for engine in settings.engines],
            UpdateRules(
                pause_mode=settings.pause_mode,
                flush_cache=settings.cache_rule == "flush",
                timeout_s=settings.confirm_timeout_s,
                transport=_transport(settings, self._config.model.device),
            ),
            check_interval_s=settings.check_interval_s,
            on_change=desk.announce,
            on_lost=desk.withdraw,
        )
        self._stack.callback(registry.close)
        return Publisher(
            self._config.run_dir / "weights",
            registry,
            save_model=model.save,
            require_engine=settings.require_engine,
            keep=settings.keep_weights,
            salts_cache=settings.cache_rule == "salt",
            board=self._status,
            check_stop=desk.check_stop,
        )

    def _board(self) -> MeasureBoard:
        config = self._config
        writer = open_tensorboard(config.run_dir / "tensorboard") if config.tensorboard else None
        board = MeasureBoard(config.run_dir / "metrics" / "learner.jsonl", self._metrics, writer)
        self._stack.callback(board.close)
        return board

    def _serve(self, dispatcher: Dispatcher, run_id: str, ready_file: Path | None) -> None:
        status = StatusServer(self._status, port=self._config.status_port, setting="learner.status_port")
        self._stack.callback(status.close)
        facts: dict[str, object] = {
            "dispatch": dispatcher.address,
            "status_address": status.address,
            "run_id": run_id,
        }
        if self._config.metrics_port is not None:
            metrics = MetricsServer(self._metrics, port=self._config.metrics_port, setting="learner.metrics_port")
            self._stack.callback(metrics.close)
            facts["metrics"] = f"http://127.0.0.1:{metrics.port}/metrics"
        self._status.set_fact("run_id", run_id)
        self._status.set_fact("dispatch", dispatcher.address)
        write_ready(ready_file, facts)
        logger.info("listening for pools", extra=facts)


def _transport(settings: PublishConfig, device: str) -> Transport:
    return (
        BroadcastTransport(settings.broadcast, device=device) if settings.transport == "broadcast" else DiskTransport()
    )


def _read_key(engine: EngineConfig) -> str:
    if engine.api_key_file is None:
        return ""
    try:
        return engine.api_key_file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(
            f"learner.publish.engines: the key file {engine.api_key_file} cannot be read: {error.strerror}"
        ) from error
