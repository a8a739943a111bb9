"""What becomes of a failed rpc."""

from __future__ import annotations

import logging

import grpc
import pytest
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc.aio import AioRpcError, Metadata

from clients.calls import Peer, error_from_rpc
from longturn.errors import CallRefusedError

PEER = Peer(name="env_server", address="h:1", setting="env_server.address", command="longturn serve")


def _failed(rich_status: bytes) -> AioRpcError:
    return AioRpcError(
        grpc.StatusCode.NOT_FOUND,
        Metadata(),
        Metadata(("grpc-status-details-bin", rich_status)),
        details="no such task",
    )


def test_a_rich_status_says_why() -> None:
    detail = any_pb2.Any()
    detail.Pack(error_details_pb2.ErrorInfo(reason="TASK_NOT_FOUND", metadata={"nearest": "t"}))
    error = error_from_rpc(_failed(status_pb2.Status(details=[detail]).SerializeToString()), PEER)
    assert isinstance(error, CallRefusedError)
    assert (error.reason, error.metadata) == ("TASK_NOT_FOUND", {"nearest": "t"})


@pytest.mark.parametrize(
    "rich_status",
    [
        b"\xff",
        status_pb2.Status(
            details=[any_pb2.Any(type_url="type.googleapis.com/google.rpc.ErrorInfo", value=b"\xff")]
        ).SerializeToString(),
    ],
    ids=["status", "detail"],
)
def test_a_rich_status_that_cannot_be_decoded_is_told_of(rich_status: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="clients.calls"):
        error = error_from_rpc(_failed(rich_status), PEER)
    assert isinstance(error, CallRefusedError)
    assert (error.reason, str(error)) == ("MALFORMED_STATUS", "no such task")
    assert [record.getMessage() for record in caplog.records] == ["the rich status of a failed call cannot be decoded"]
