"""What can go wrong in the engine, by who has to act.

EngineError
├── StartError             the operator mends a setting (model folder, port, tokenizer, memory)
├── UnsupportedModelError  the model cannot be served exactly; the message says why and what would work
├── WeightsError           a weight folder was refused; the engine still serves what it served before
├── BadRequestError        HTTP 400; the client mends the request
├── QueueFullError         HTTP 503; the client comes back later
└── UnhealthyError         HTTP 503; weights are half copied or not finite, until a full load succeeds
"""

from longturn.errors import LongturnError


class EngineError(LongturnError):
    """Base of everything the engine raises on purpose."""

    reason = "ENGINE_ERROR"


class StartError(EngineError):
    """The engine cannot start; the message names the setting that mends it."""

    reason = "ENGINE_START"


class UnsupportedModelError(EngineError):
    """The model's configuration asks for something that this backend would compute differently."""

    reason = "UNSUPPORTED_MODEL"


class WeightsError(EngineError):
    """A weight folder failed a check. Nothing was copied into the model."""

    reason = "BAD_WEIGHTS"


class BadRequestError(EngineError):
    """The request is malformed or asks for something this engine does not do."""

    reason = "BAD_REQUEST"


class QueueFullError(EngineError):
    """The waiting queue is at its bound."""

    reason = "QUEUE_FULL"


class UnhealthyError(EngineError):
    """The weights in memory are not a whole version; only a full load mends it."""

    reason = "UNHEALTHY"
