"""Bare grpc.aio peers for bench_env_rpc: the wire alone, coalesced and unary, with no episodes behind it.

Every step gets the same 400-byte answer. Run: python benchmarks/env_bare.py PORT
"""

import asyncio
import sys

import grpc

from longturn.v1 import environment_pb2, environment_pb2_grpc

RESULT = environment_pb2.StepResult(
    observation="x" * 400, status=environment_pb2.EPISODE_STATUS_RUNNING, action_valid=True, state_hash=b"0" * 16
)


class BareService(environment_pb2_grpc.EnvironmentServiceServicer):
    """Answers without doing anything."""

    async def StartEpisode(self, request, context):  # noqa: N802
        return environment_pb2.StartEpisodeResponse(episode_id="e", episode_token="t", result=RESULT)

    async def Step(self, request, context):  # noqa: N802
        result = environment_pb2.StepResult()
        result.CopyFrom(RESULT)
        result.turn_index = request.turn_index + 1
        return environment_pb2.StepResponse(result=result)

    async def Play(self, request_iterator, context):  # noqa: N802
        ready: list[tuple[int, int]] = []
        wake = asyncio.Event()

        async def read() -> None:
            while (request := await context.read()) is not grpc.aio.EOF:
                ready.extend((call.call_id, call.step.turn_index + 1) for call in request.calls)
                wake.set()

        reader = asyncio.create_task(read())
        while not reader.done():
            await wake.wait()
            wake.clear()
            answer = environment_pb2.PlayResponse()
            for call_id, turn_index in ready:
                reply = answer.replies.add()
                reply.call_id = call_id
                reply.step.CopyFrom(RESULT)
                reply.step.turn_index = turn_index
            ready.clear()
            await context.write(answer)


async def main(port: int) -> None:
    options = [
        ("grpc.server.max_pending_requests", 65_536),
        ("grpc.server.max_pending_requests_hard_limit", 65_536),
        ("grpc.so_reuseport", 0),
    ]
    server = grpc.aio.server(options=options)
    environment_pb2_grpc.add_EnvironmentServiceServicer_to_server(BareService(), server)
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
