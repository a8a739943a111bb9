"""Both ends of what the leader tells its followers: whether there is a batch yet, and which."""

from __future__ import annotations

import threading
from contextlib import suppress

from learner.desk import StopRequested, TrainingDesk
from learner.dispatcher import Dispatcher
from learner.distributed.group import GroupRanks, RankLostError
from learner.distributed.messages import batch_from_json, batch_to_json
from learner.ledger.records import TakenBatch
from longturn.status import StatusBoard


class LeaderDesk(TrainingDesk):
    """The desk of a leader: what it takes, the followers hear."""

    def __init__(self, dispatcher: Dispatcher, board: StatusBoard, stop: threading.Event, ranks: GroupRanks) -> None:
        # While actors play, a follower hears at every poll that its leader lives.
        super().__init__(dispatcher, board, stop, on_wait=lambda: ranks.tell({"kind": "wait"}))
        self._ranks = ranks

    def wait_for_batch(self, batch: int) -> TakenBatch:
        """As `TrainingDesk`; a request to stop reaches the followers, too."""
        try:
            taken = super().wait_for_batch(batch)
        except StopRequested:
            # A follower that was asked to stop, too, may be gone already.
            with suppress(RankLostError):
                self._ranks.tell({"kind": "stop"})
            raise
        steps = {str(version): step for version, step in self.training_steps().items()}
        self._ranks.tell({"kind": "batch", "batch": batch_to_json(taken), "training_steps": steps})
        return taken


class ToldBatches:
    """Batches as a follower hears of them."""

    def __init__(self, ranks: GroupRanks) -> None:
        self._ranks = ranks
        self._training_steps: dict[int, int] = {}

    def take(self, batch: int) -> TakenBatch:
        """The leader's next batch; StopRequested if it stops."""
        while True:
            message = self._ranks.hear()
            if message["kind"] == "stop":
                raise StopRequested("the leader was asked to stop; resume with --resume auto")
            if message["kind"] == "batch":
                self._training_steps = {int(version): step for version, step in message["training_steps"].items()}
                return batch_from_json(message["batch"])

    def refill(self) -> bool:
        """The leader, who asks the pools, tells the batch again."""
        return True

    def training_steps(self) -> dict[int, int]:
        """Training step of every version that the leader knew when it took the batch."""
        return self._training_steps
