"""Training from a ledger: `longturn learn --replay RUN`, without pools, engines or a socket.

The batches that the run consumed are trained again in their order, in another run folder. With the settings of that run
the weights are the same to the bit; with others, the same episodes are trained by another method, off-policy by what
they would have been sampled with.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import ExitStack
from pathlib import Path

from learner.assembly import chosen_checkpoint, load_training, make_parts, trainer_state
from learner.config import LearnConfig
from learner.desk import StopRequested
from learner.ledger.recorded import RecordedBatches
from learner.ledger.records import TakenBatch
from learner.loop import run
from learner.measure_board import MeasureBoard, open_tensorboard
from learner.phases import Parts, save
from learner.signals import stop_signals
from learner.silent import SilentDesk, SilentPublisher
from learner.state import EndReason
from learner.summary import write_summary
from longturn.errors import ConfigError
from longturn.metrics import Metrics
from longturn.report.ledger import open_read_only
from longturn.run_folder import held_folder
from longturn.status import StatusBoard

logger = logging.getLogger(__name__)


class LedgerEnded(StopRequested):  # it is no error either
    """Every batch that was consumed has been trained."""

    reason = EndReason.LEDGER_ENDED.value


class LedgerBatches:
    """A recorded run's batches, as the training loop takes them."""

    def __init__(self, recorded: RecordedBatches) -> None:
        self._recorded = recorded

    def take(self, batch: int) -> TakenBatch:
        """A batch as it was trained or skipped; LedgerEnded beyond the last one."""
        taken = self._recorded.take(batch)
        if taken is None:
            raise LedgerEnded(f"the ledger holds {self._recorded.num_consumed} batches")
        return taken

    def refill(self) -> bool:
        """A recorded batch is what it was."""
        return False

    def training_steps(self) -> dict[int, int]:
        """Training step of every version of the recorded run."""
        return self._recorded.training_steps()


def replay(config: LearnConfig, source: Path, *, resume: str) -> EndReason:
    """Train on a run's batches until they or the planned number end; the reason."""
    ledger = source / "ledger.db" if source.is_dir() else source
    if ledger.resolve() == (config.run_dir / "ledger.db").resolve():
        raise ConfigError(
            f"--replay {source} would write into the run it reads: name another folder, --set run_dir=runs/NAME"
        )
    started_s = time.monotonic()
    with ExitStack() as stack:
        refusal = f"another learner runs in {config.run_dir}; stop it, or set learner.run_dir"
        stack.enter_context(held_folder(config.run_dir, "learner.lock", refusal=refusal))
        recorded = RecordedBatches(stack.enter_context(open_read_only(ledger)))
        recorded.check_shape(config.batch.groups_per_step, config.batch.group_size)
        stop = stack.enter_context(stop_signals())
        parts = _parts(config, recorded, stack, stop, resume=resume)
        try:
            reason = run(parts)
        except StopRequested as request:
            reason = EndReason(request.reason)
        if reason is not EndReason.STOPPED:
            save(parts)
        logger.info("replay ended", extra={"reason": reason.value, "training_step": parts.state.training_step})
        write_summary(parts, reason=reason, wall_s=time.monotonic() - started_s)
    return reason


def _parts(
    config: LearnConfig, recorded: RecordedBatches, stack: ExitStack, stop: threading.Event, *, resume: str
) -> Parts:
    resumed = chosen_checkpoint(config, resume)
    training = load_training(config, resumed)
    recorded.check_tokenizer(training.model.tokenizer_hash)
    state = trainer_state(config, resumed, recorded.run_id)
    if state.run_id != recorded.run_id:
        raise ConfigError(
            f"the checkpoint in {config.run_dir} is of run {state.run_id}, the ledger of {recorded.run_id}; start "
            "another run folder (learner.run_dir)"
        )
    metrics = Metrics()
    writer = open_tensorboard(config.run_dir / "tensorboard") if config.tensorboard else None
    board = MeasureBoard(config.run_dir / "metrics" / "learner.jsonl", metrics, writer)
    stack.callback(board.close)
    return make_parts(
        config,
        training,
        state,
        desk=SilentDesk(LedgerBatches(recorded), stop),
        publisher=SilentPublisher(),
        board=board,
        status=StatusBoard("learner", metrics),
    )
