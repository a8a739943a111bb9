"""What the rpcs and the stream share: messages in, episodes, messages out."""

from __future__ import annotations

from env_server.access import Caller
from env_server.episode import Episode
from env_server.episode_table import EpisodeTable
from env_server.rebuilder import Rebuilder
from env_server.refusals import RefusedError
from env_server.start_request import StartRequest, request_digest
from env_server.starter import Starter
from longturn.codec import task_from_proto, task_to_proto
from longturn.errors import WireError
from longturn.records import EndCause
from longturn.v1 import environment_pb2

MAX_CLIENT_ID = 128
MAX_NAME = 1024
"""Most characters of an environment, a task, a knob or a knob's text."""
CLIENT_CAUSES = {
    cause.value: cause
    for cause in (
        EndCause.TOKEN_LIMIT,
        EndCause.TIME_LIMIT,
        EndCause.STALENESS,
        EndCause.SHUTDOWN,
        EndCause.CLIENT_REQUEST,
    )
}
ENVELOPE_BYTES = 1024
"""Room that a message leaves for what surrounds a result."""


class Calls:
    """The calls of the service, each as one method on messages; RefusedError where one is refused."""

    def __init__(self, table: EpisodeTable, starter: Starter, rebuilder: Rebuilder, *, max_message_bytes: int) -> None:
        self.table = table
        self._starter, self._rebuilder = starter, rebuilder
        self._max_message_bytes = max_message_bytes
        self.max_result_bytes = max_message_bytes - ENVELOPE_BYTES

    def authorise_step(self, request: environment_pb2.StepRequest) -> Episode:
        """The episode of a step; also refuses an action beyond the message limit."""
        if len(request.action) > self._max_message_bytes:
            raise self.too_large(len(request.action))
        return self.table.authorise(request.episode_id, request.episode_token)

    def too_large(self, num_bytes: int) -> RefusedError:
        """The refusal of a message that does not fit; the step, if there was one, is applied all the same."""
        return RefusedError(
            "MESSAGE_TOO_LARGE",
            f"a message of {num_bytes} bytes exceeds the limit of {self._max_message_bytes}: raise"
            " env_server.max_message_bytes and the client's own (grpc.max_receive_message_length) alike",
            setting="env_server.max_message_bytes",
        )

    async def start(
        self, request: environment_pb2.StartEpisodeRequest, caller: Caller
    ) -> tuple[Episode, environment_pb2.StartEpisodeResponse]:
        """Start an episode."""
        started = await self._starter.start(request.request_id, _start_request(request, caller))
        episode = started.episode
        return episode, environment_pb2.StartEpisodeResponse(
            episode_id=episode.episode_id,
            episode_token=started.token,
            result=self._first(episode),
            environment_version=episode.spec.version,
            data_hash=episode.spec.data_hash,
            max_turns=episode.max_turns,
        )

    async def fork(
        self, request: environment_pb2.ForkEpisodeRequest
    ) -> tuple[Episode, environment_pb2.ForkEpisodeResponse]:
        """Start an episode from a turn of another one."""
        source = self.table.authorise(request.episode_id, request.episode_token)
        await self.table.until_quiet(source)
        started = await self._starter.fork(source, request.request_id, request.at_turn)
        copy = started.episode
        return copy, environment_pb2.ForkEpisodeResponse(
            episode_id=copy.episode_id, episode_token=started.token, result=self._first(copy)
        )

    async def end(self, request: environment_pb2.EndEpisodeRequest) -> environment_pb2.EndEpisodeResponse:
        """End an episode; without a cause it is the client's request."""
        episode = self.table.authorise(request.episode_id, request.episode_token)
        cause = CLIENT_CAUSES.get(request.cause or EndCause.CLIENT_REQUEST.value)
        if cause is None:
            names = ", ".join(cause.name for cause in CLIENT_CAUSES.values())
            raise RefusedError("BAD_END_CAUSE", f"end cause {request.cause} is not a client's; take one of {names}")
        return environment_pb2.EndEpisodeResponse(result=await self.table.end(episode, cause))

    async def get(self, request: environment_pb2.GetEpisodeRequest) -> environment_pb2.GetEpisodeResponse:
        """Where an episode stands, with its turns if asked."""
        episode = self.table.authorise(request.episode_id, request.episode_token)
        whole = environment_pb2.GetEpisodeResponse()
        if request.with_transcript:
            await self.table.until_quiet(episode)
            whole = await self._rebuilder.transcript(episode)
        await self.table.until_written()
        _describe(episode, whole)
        if (num_bytes := whole.ByteSize()) > self._max_message_bytes:
            raise self.too_large(num_bytes)
        return whole

    async def attach(self, request: environment_pb2.AttachRequest) -> environment_pb2.GetEpisodeResponse:
        """What a client that reconnects needs to know."""
        return await self.get(
            environment_pb2.GetEpisodeRequest(episode_id=request.episode_id, episode_token=request.episode_token)
        )

    def keep_alive(self, request: environment_pb2.KeepAliveRequest) -> environment_pb2.KeepAliveResponse:
        """Renew leases."""
        renew = self.table.renew
        lost = [item.episode_id for item in request.episodes if not renew(item.episode_id, item.episode_token)]
        return environment_pb2.KeepAliveResponse(lost_episode_ids=lost)

    def _first(self, episode: Episode) -> environment_pb2.StepResult:
        """The first state, as it was answered the first time."""
        if len(episode.initial) > self.max_result_bytes:
            raise self.too_large(len(episode.initial))
        return environment_pb2.StepResult.FromString(episode.initial)


def check_lengths(what: str, *values: object) -> None:
    """RefusedError(BAD_REQUEST) if a text is longer than any name here."""
    longest = max((len(value) for value in values if isinstance(value, str)), default=0)
    if longest > MAX_NAME:
        raise RefusedError("BAD_REQUEST", f"a name in {what} has {longest} characters, more than {MAX_NAME}")


def _start_request(message: environment_pb2.StartEpisodeRequest, caller: Caller) -> StartRequest:
    if len(message.client_id) > MAX_CLIENT_ID or not message.client_id.isprintable():  # it goes into log lines
        raise RefusedError("BAD_REQUEST", f"client_id has more than {MAX_CLIENT_ID} characters, or unprintable ones")
    try:
        task = task_from_proto(message.task)
    except WireError as error:
        raise RefusedError("BAD_REQUEST", str(error)) from error
    check_lengths("task", task.environment, task.task_id, *task.knobs, *task.knobs.values())
    return StartRequest(
        request_digest=request_digest(message.request_id),
        task=task,
        seed=message.seed,
        max_turns=message.max_turns,
        with_progress=message.with_progress,
        with_oracle=message.with_oracle,
        client_id=caller.name or message.client_id,
    )


def _describe(episode: Episode, whole: environment_pb2.GetEpisodeResponse) -> None:
    whole.episode_id = episode.episode_id
    whole.turn_index = episode.turn_index
    whole.last.CopyFrom(episode.last)
    whole.task.CopyFrom(task_to_proto(episode.request.task))
    whole.seed = episode.request.seed
    if whole.transcript and episode.last.end_cause == environment_pb2.END_CAUSE_TURN_LIMIT:
        whole.transcript[-1].result.CopyFrom(episode.last)
