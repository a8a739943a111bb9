"""A rank that is not the leader: the same loop over the batches it is told, without ledger, engines or files."""

from __future__ import annotations

import threading
from pathlib import Path

from learner.assembly import load_training, make_parts, resumed_from, trainer_state
from learner.config import LearnConfig
from learner.desk import StopRequested
from learner.distributed.desks import ToldBatches
from learner.distributed.group import GroupRanks
from learner.loop import run
from learner.silent import SilentBoard, SilentDesk, SilentPublisher
from learner.state import EndReason
from longturn.metrics import Metrics
from longturn.status import StatusBoard


def follow(config: LearnConfig, ranks: GroupRanks, stop: threading.Event) -> EndReason:
    """Train beside the leader until it ends; the reason. RankLostError if the leader is lost."""
    checkpoint = ranks.hear()
    resumed = resumed_from(Path(checkpoint), config) if checkpoint else None
    training = load_training(config, resumed, ranks)
    parts = make_parts(
        config,
        training,
        trainer_state(config, resumed, ranks.hear()),
        desk=SilentDesk(ToldBatches(ranks), stop),
        publisher=SilentPublisher(),
        board=SilentBoard(),
        status=StatusBoard("learner", Metrics()),
    )
    try:
        return run(parts)
    except StopRequested as request:
        return EndReason(request.reason)
