"""A learner's end of the dispatch socket that follows a script: hands out given groups, acks, and keeps what came."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from longturn.codec import task_to_proto, trajectory_from_bytes
from longturn.dispatch import PROTOCOL_VERSION, Body, DispatchRouter, PeerGoneError
from longturn.records import Task, Trajectory
from longturn.v1 import dispatch_pb2

RUN_ID = "run-1"

AckFor = Callable[[dispatch_pb2.SubmitTrajectory], "dispatch_pb2.AckVerdict.ValueType | None"]


def accept(message: dispatch_pb2.SubmitTrajectory) -> dispatch_pb2.AckVerdict.ValueType | None:
    """The ordinary answer."""
    return dispatch_pb2.ACK_VERDICT_ACCEPTED


def group(
    group_id: str, task: Task, *, size: int = 4, attempt: int = 0, seed: int = 5, **fields: object
) -> dispatch_pb2.GroupAssignment:
    """An assignment of all members."""
    message = dispatch_pb2.GroupAssignment(
        group_id=group_id,
        attempt=attempt,
        task=task_to_proto(task),
        seed=seed,
        member_indices=range(size),
        sampling_seeds=range(100, 100 + size),
        purpose=dispatch_pb2.PURPOSE_TRAIN,
        group_size=size,
        task_kind="echo",
    )
    message.MergeFrom(dispatch_pb2.GroupAssignment(**fields))  # type: ignore[arg-type]
    return message


def rules(**fields: object) -> dispatch_pb2.PlayRules:
    """Rules for short episodes."""
    message = dispatch_pb2.PlayRules(
        temperature=1.0, max_new_tokens=64, max_episode_tokens=100_000, max_member_retries=2, with_progress=True
    )
    message.MergeFrom(dispatch_pb2.PlayRules(**fields))  # type: ignore[arg-type]
    return message


class ScriptedLearner:
    """Runs in a thread of its own. Ends the run once every group is complete, given up or superseded."""

    def __init__(
        self,
        folder: Path,
        *,
        groups: Sequence[dispatch_pb2.GroupAssignment],
        engine_urls: Sequence[str],
        play: dispatch_pb2.PlayRules | None = None,
        ack_for: AckFor = accept,
        tokenizer_hash: str = "",
        run_id: str = RUN_ID,
        run_epoch: int = 1,
        policy_version: int = 0,
        is_silent: bool = False,
        ends_by_itself: bool = True,
    ) -> None:
        self.address = f"ipc://{folder}/dispatch.sock"
        self._waiting = list(groups)
        self._missing = {(item.group_id, item.attempt): set(item.member_indices) for item in groups}
        self._engine_urls = list(engine_urls)
        self._play = play or rules()
        self.ack_for = ack_for
        self._tokenizer_hash = tokenizer_hash
        self._run_id = run_id
        self.run_epoch = run_epoch
        self.policy_version = policy_version
        self._is_silent = is_silent
        self._ends_by_itself = ends_by_itself
        self.received: list[Body] = []
        self.trajectories: list[Trajectory] = []
        self.failed: list[dispatch_pb2.GroupFailed] = []
        self.on_message: Callable[[Body], Sequence[Body]] = lambda body: ()
        """Further messages to send after this one arrived; runs in the learner's thread."""
        self._stop = threading.Event()
        self._opened = threading.Event()
        self._outbox: list[Body] = []
        self._thread = threading.Thread(target=self._run, name="scripted-learner")

    def __enter__(self) -> ScriptedLearner:
        self._thread.start()
        self._opened.wait(10)
        return self

    def __exit__(self, *details: object) -> None:
        # No wake: the thread may have closed its socket by itself. It looks at the event five times a second.
        self._stop.set()
        self._thread.join()

    def push(self, *bodies: Body) -> None:
        """Send to whoever said Hello. Safe from other threads."""
        self._outbox.extend(bodies)
        self._router.wake()

    def announcement(self) -> dispatch_pb2.PolicyAnnouncement:
        """Of the current version."""
        return dispatch_pb2.PolicyAnnouncement(
            policy_version=self.policy_version, run_epoch=self.run_epoch, engines=self._engines()
        )

    def members(self, group_id: str) -> dict[int, Trajectory]:
        """Accepted trajectories of a group by member."""
        found = [item for item in self.trajectories if item.identity and item.identity.group_id == group_id]
        return {item.identity.member_index: item for item in found if item.identity}

    def _engines(self) -> list[dispatch_pb2.EngineEndpoint]:
        return [dispatch_pb2.EngineEndpoint(url=url, policy_version=self.policy_version) for url in self._engine_urls]

    def _run(self) -> None:
        peer = b""
        with DispatchRouter(self.address) as self._router:
            self._opened.set()
            while not self._stop.is_set():
                for message in self._router.receive(0.2):
                    peer = message.peer
                    self.received.append(message.body)
                    if not self._is_silent:
                        self._send(peer, *self._answers(message.body), *self.on_message(message.body))
                if peer:
                    outbox, self._outbox = self._outbox, []
                    self._send(peer, *outbox)
                    if not self._is_silent:
                        self._send(peer, dispatch_pb2.Heartbeat(run_epoch=self.run_epoch))

    def _send(self, peer: bytes, *bodies: Body) -> None:
        for body in bodies:
            try:
                self._router.send(peer, body)
            except PeerGoneError:
                return

    def _answers(self, body: Body) -> list[Body]:
        if not any(isinstance(earlier, dispatch_pb2.Hello) for earlier in self.received):
            return [dispatch_pb2.Refusal(reason="HELLO_FIRST", message="say Hello")]
        match body:
            case dispatch_pb2.Hello():
                return [self.welcome()]
            case dispatch_pb2.GroupRequest():
                return self._assignments(body.free_actors)
            case dispatch_pb2.SubmitTrajectory():
                return self._take(body)
            case dispatch_pb2.GroupFailed():
                self.failed.append(body)
                self._missing.pop((body.group_id, body.attempt), None)
                return self._end_if_done()
            case _:
                return []

    def welcome(self) -> dispatch_pb2.Welcome:
        """The answer to Hello."""
        return dispatch_pb2.Welcome(
            run_id=self._run_id,
            run_epoch=self.run_epoch,
            protocol_version=PROTOCOL_VERSION,
            engines=self._engines(),
            policy_version=self.policy_version,
            rules=self._play,
            tokenizer_hash=self._tokenizer_hash,
            heartbeat_s=0.2,
        )

    def _assignments(self, num_free: int) -> list[Body]:
        given: list[Body] = []
        while self._waiting and num_free > 0:
            item = self._waiting.pop(0)
            if (item.group_id, item.attempt) in self._missing:
                num_free -= len(item.member_indices)
                given.append(item)
        return given or self._end_if_done()

    def _take(self, message: dispatch_pb2.SubmitTrajectory) -> list[Body]:
        verdict = self.ack_for(message)
        if verdict is None:
            return []
        identity = message.identity
        missing = self._missing.get((identity.group_id, identity.attempt))
        if verdict == dispatch_pb2.ACK_VERDICT_ACCEPTED and missing is not None:
            if identity.member_index not in missing:
                verdict = dispatch_pb2.ACK_VERDICT_DUPLICATE
            else:
                missing.discard(identity.member_index)
                self.trajectories.append(trajectory_from_bytes(message.trajectory))
                if not missing:
                    del self._missing[(identity.group_id, identity.attempt)]
        elif verdict != dispatch_pb2.ACK_VERDICT_ACCEPTED:
            self._missing.pop((identity.group_id, identity.attempt), None)
        return [dispatch_pb2.Ack(identity=identity, verdict=verdict), *self._end_if_done()]

    def _end_if_done(self) -> list[Body]:
        is_done = self._ends_by_itself and not self._missing and not self._waiting
        return [dispatch_pb2.EndOfRun(reason="COMPLETED")] if is_done else []
