"""Why a request fails, as its client is told: one class, raised at any depth, and its way to HTTP in OpenAI's shape."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
}
"""OpenAI's ``type`` by status; other 4xx are ``invalid_request_error``, all else is ``server_error``."""

DEFAULT_CODES = {
    401: "invalid_api_key",
    404: "not_found",
    405: "method_not_allowed",
    408: "request_timeout",
    413: "request_too_large",
    429: "rate_limit_exceeded",
    500: "internal_error",
    502: "bad_gateway",
    503: "service_unavailable",
    504: "timeout",
}
"""``code`` where the error names none of its own."""

RawHeaders = list[tuple[bytes, bytes]]


class ErrorDetail(msgspec.Struct):
    """An error's content."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct):
    """An error as clients get it."""

    error: ErrorDetail


class GatewayError(Exception):
    """A request ends with ``status``; ``param`` names the field that is wrong, as ``messages[0].content``."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status if 400 <= status <= 599 else 502
        self.message = message
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s
        self.headers = headers or {}


def bad_field(param: str | None, message: str, code: str | None = None) -> GatewayError:
    return GatewayError(400, message, code=code, param=param)


def failed() -> GatewayError:
    """Return what a client is told of a fault of ours; the server logs it."""
    return GatewayError(500, "The gateway failed to handle this request.")


def encode_error(error: GatewayError) -> bytes:
    """Return the JSON body, which is also the data of an SSE error event."""
    kind = ERROR_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    code = error.code or DEFAULT_CODES.get(error.status)
    return msgspec.json.encode(ErrorBody(ErrorDetail(message=error.message, type=kind, param=error.param, code=code)))


def error_headers(error: GatewayError) -> dict[str, str]:
    """Return the headers that the error itself asks for."""
    headers = {name.lower(): value for name, value in error.headers.items()}
    if error.retry_after_s is not None:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
    return headers


@dataclass(frozen=True, slots=True)
class ErrorShape:
    """How an API tells errors: as a JSON body, and as the last event of a stream."""

    spell_body: Callable[[GatewayError], bytes] = encode_error
    spell_event: Callable[[GatewayError], bytes] = lambda error: b"data: " + encode_error(error) + b"\n\n"


OPENAI_ERRORS = ErrorShape()


def error_messages(
    error: GatewayError, headers: RawHeaders, shape: ErrorShape = OPENAI_ERRORS
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the two ASGI messages that answer a request with the error."""
    body = shape.spell_body(error)
    lines = [*headers, (b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    lines += [(name.encode(), value.encode("latin-1")) for name, value in error_headers(error).items()]
    return (
        {"type": "http.response.start", "status": error.status, "headers": lines},
        {"type": "http.response.body", "body": body},
    )


def reason_of(error: Exception) -> str:
    """Return what an operator is told of a failure; a time-out says nothing of itself."""
    return str(error) or "no answer in time"
