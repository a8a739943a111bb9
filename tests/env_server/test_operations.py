"""What an operator sees: metrics of every kind, channelz, traces, reflection."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import urllib.request
from concurrent import futures
from contextlib import closing
from pathlib import Path

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from env_server.config import EnvServerConfig
from env_server.fair_queue import FairGate, FairQueue
from env_server.server import serving
from longturn.errors import ConfigError
from longturn.metrics import BOUNDS_S, Histogram, Metrics, MetricsServer
from longturn.status import StatusBoard
from longturn.v1 import environment_pb2, environment_pb2_grpc
from tests.env_server.loopback import FAULTY, Client, loopback, start_request, until_in_flight
from tests.env_server.processes import daemon
from tests.support.waiting import until, wait_until


def scraped(metrics: Metrics) -> dict[str, float]:
    """The samples that Prometheus would read over HTTP, by name and labels."""
    with closing(MetricsServer(metrics, port=0, setting="x")) as server:
        text = urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics").read().decode()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_a_histogram_counts_every_duration_in_its_bucket() -> None:
    histogram = Histogram()
    durations_s = [0.0, BOUNDS_S[0], BOUNDS_S[0] * 1.01, 0.3, BOUNDS_S[-1], 1e9]
    for duration_s in durations_s:
        histogram.observe(duration_s)
    cumulative = dict(histogram.cumulative())
    for bound in BOUNDS_S:
        assert cumulative[str(bound)] == sum(duration_s <= bound for duration_s in durations_s)
    assert (cumulative["+Inf"], histogram.total_s) == (len(durations_s), sum(durations_s))


def test_steps_and_starts_are_timed_per_environment_and_faults_are_counted() -> None:
    async def main() -> None:
        async with loopback("echo", FAULTY, lease_s=1.0) as client:
            assert client.metrics.snapshot()["server/worker/num_restarts"] == 0
            player, other = await client.start(), await client.start("faulty")
            for _ in range(3):
                await player.step()
            await other.step()
            (worker,) = client.server.pool.workers
            os.kill(worker.pid, signal.SIGKILL)
            assert (await player.step()).rebuilt
            fork = environment_pb2.ForkEpisodeRequest(
                request_id="0" * 32, episode_id=player.episode_id, episode_token=player.token, at_turn=1
            )
            await client.stub.ForkEpisode(fork)
            await until(lambda: client.metrics.snapshot()["server/episode/num_reaped"] == 3)
            samples = await asyncio.to_thread(scraped, client.metrics)
            step, start = "longturn_server_step_duration_s", "longturn_server_start_duration_s"
            assert samples[f'{step}_count{{environment="echo"}}'] == 4
            assert samples[f'{step}_count{{environment="faulty"}}'] == 1
            assert samples[f'{step}_bucket{{environment="echo",le="+Inf"}}'] == 4
            assert samples[f'{start}_count{{environment="echo"}}'] == 1
            for name, number in (("worker_num_restarts", 1), ("episode_num_reaped", 3), ("episode_num_forked", 1)):
                assert samples[f"longturn_server_{name}_total"] == number
            assert samples["longturn_server_episode_num_replays_total"] >= 2
            assert samples["longturn_server_worker_rss_bytes"] > 0

    asyncio.run(main())


def test_a_queue_tells_the_age_of_its_oldest_item(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]
    monkeypatch.setattr("env_server.fair_queue.time.monotonic", lambda: now_s[0])
    queue: FairQueue[str] = FairQueue()
    assert queue.age_s == 0.0
    for client_id, item in (("a", "1"), ("b", "2"), ("a", "3")):
        queue.put(client_id, item)
        now_s[0] += 1.0
    assert queue.age_s == 3.0
    queue.take()
    assert queue.age_s == 2.0


def test_who_waits_for_a_place_is_seen() -> None:
    async def main() -> None:
        gate = FairGate(1)
        async with gate.hold("a"):
            waiting = asyncio.create_task(_visit(gate))
            await asyncio.sleep(0)
            assert gate.num_waiting == 1
            assert gate.age_s >= 0.0
        await waiting
        assert (gate.num_waiting, gate.age_s) == (0, 0.0)

    asyncio.run(main())


async def _visit(gate: FairGate) -> None:
    async with gate.hold("b"):
        pass


def test_steps_that_wait_for_a_worker_are_seen_with_their_age() -> None:
    async def main() -> None:
        async with loopback(FAULTY) as client:
            players = [await client.start("faulty", index, knobs={"step_sleep_ms": 150.0}) for index in range(20)]
            for player in players[:8]:  # how far a worker is fed ahead follows its answers: these are slow
                await player.step()
            steps = [asyncio.create_task(player.step()) for player in players]
            await until_in_flight(client, 20)
            await until(lambda: client.metrics.snapshot().get("server/worker/queue_age_s", 0.0) > 0.0)
            assert client.metrics.snapshot()["server/worker/num_queued"] > 0
            await asyncio.gather(*steps)
            await until(lambda: client.metrics.snapshot()["server/worker/queue_age_s"] == 0.0)

    asyncio.run(main())


async def _listed(client: Client) -> set[str]:
    """Services that reflection names."""
    async with grpc.aio.insecure_channel(client.server.address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        async for answer in stub.ServerReflectionInfo(iter([request])):
            return {service.name for service in answer.list_services_response.service}
    return set()


def test_reflection_can_be_turned_off() -> None:
    async def main() -> None:
        async with loopback() as client:
            assert "longturn.v1.EnvironmentService" in await _listed(client)
        async with loopback(reflection=False) as client:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await _listed(client)
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED

    asyncio.run(main())


def test_channelz_shows_the_servers_sockets_when_asked_for() -> None:
    pytest.importorskip("grpc_channelz", reason="grpcio-channelz is not installed; run: make install")
    from grpc_channelz.v1 import channelz_pb2, channelz_pb2_grpc

    async def main() -> None:
        for is_on in (True, False):
            async with loopback(channelz=is_on) as client, grpc.aio.insecure_channel(client.server.address) as channel:
                await client.start()
                stub = channelz_pb2_grpc.ChannelzStub(channel)
                call = stub.GetServers(channelz_pb2.GetServersRequest(start_server_id=0))
                if is_on:
                    assert any(server.data.calls_started for server in (await call).server)
                    assert "grpc.channelz.v1.Channelz" in await _listed(client)
                else:
                    assert await call.code() is grpc.StatusCode.UNIMPLEMENTED

    asyncio.run(main())


@pytest.mark.parametrize(
    ("setting", "module"), [("channelz", "grpc_channelz.v1"), ("traces", "opentelemetry.sdk.trace")]
)
def test_an_extra_that_is_missing_is_named(setting: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from env_server.traces import tracing

    monkeypatch.setitem(sys.modules, module, None)  # importing it raises

    async def main() -> None:
        config = EnvServerConfig.model_validate({"port": 0, "environments": ("echo",), "num_workers": 1, setting: True})
        metrics = Metrics()
        with tracing(is_wanted=config.traces) as tracers:
            board = StatusBoard("env_server", metrics)
            async with serving(config, metrics=metrics, board=board, tracers=tracers):
                pass

    def run() -> None:
        try:
            asyncio.run(main())
        except* ConfigError as group:
            raise group.exceptions[0] from None

    with pytest.raises(ConfigError, match=rf"env_server\.{setting} needs .*'\.\[{setting}\]'"):
        run()


def test_unary_calls_are_traced_to_a_collector_and_streams_are_not(tmp_path: Path) -> None:
    pytest.importorskip(
        "opentelemetry.instrumentation.grpc", reason="opentelemetry is not installed; run: make install"
    )
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

    names: list[str] = []

    class Collector(trace_service_pb2_grpc.TraceServiceServicer):
        def Export(self, request, context):  # noqa: N802  # the method's name on the wire
            spans = [span for one in request.resource_spans for scope in one.scope_spans for span in scope.spans]
            names.extend(span.name for span in spans)
            return trace_service_pb2.ExportTraceServiceResponse()

    collector = grpc.server(futures.ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Collector(), collector)
    port = collector.add_insecure_port("127.0.0.1:0")
    collector.start()
    variables = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
        "OTEL_EXPORTER_OTLP_INSECURE": "true",
        "OTEL_BSP_SCHEDULE_DELAY": "100",
    }
    try:
        with daemon(tmp_path, "--env", "echo", "--set", "traces=true", **variables) as (_, address):
            with grpc.insecure_channel(address) as channel:
                stub = environment_pb2_grpc.EnvironmentServiceStub(channel)
                call = environment_pb2.PlayCall(call_id=1, start=start_request())
                replies = list(stub.Play(iter([environment_pb2.PlayRequest(calls=[call])])))
                assert replies[0].replies[0].HasField("start")
                assert stub.StartEpisode(start_request()).episode_id
                with pytest.raises(grpc.RpcError):
                    stub.Step(environment_pb2.StepRequest(episode_id="nobody"))
            wait_until(lambda: len(names) == 2)
            assert names == [f"/longturn.v1.EnvironmentService/{method}" for method in ("StartEpisode", "Step")]
    finally:
        collector.stop(None).wait()
