"""OpenTelemetry traces of the unary calls, sent over OTLP. An optional extra; nothing of it is imported unless wanted.

Play streams are not traced: one span would carry thousands of episodes over hours.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import grpc

from longturn.errors import ConfigError
from longturn.extras import how_to_install

TRACED = "/longturn.v1.EnvironmentService/"
UNTRACED = TRACED + "Play"
SERVICE_NAME = "longturn-env-server"


@contextmanager
def tracing(*, is_wanted: bool) -> Iterator[Sequence[grpc.aio.ServerInterceptor]]:
    """What the server needs to be traced while the block runs; what is still unsent is sent at its end.

    Exporter, sampler and resource are set by OpenTelemetry's own variables, such as OTEL_EXPORTER_OTLP_ENDPOINT.
    """
    if not is_wanted:
        yield ()
        return
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.instrumentation.grpc import aio_server_interceptor
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        raise ConfigError(f"env_server.traces needs {error.name}; {how_to_install('traces')}") from error
    own_name = {} if "OTEL_SERVICE_NAME" in os.environ else {"service.name": SERVICE_NAME}
    provider = TracerProvider(resource=Resource.create(own_name))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    try:
        yield (aio_server_interceptor(tracer_provider=provider, filter_=_is_traced),)
    finally:
        provider.shutdown()


def _is_traced(details: grpc.HandlerCallDetails) -> bool:
    return details.method.startswith(TRACED) and details.method != UNTRACED
