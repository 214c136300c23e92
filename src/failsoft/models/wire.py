"""The OpenAI chat format in one place: requests, chunks, assembled and replayed answers, errors.

The parts are in modules of their own; what is here is how errors and comments go to the client.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from failsoft.base.errors import FailsoftError
from failsoft.models.assembly import DONE_EVENT, Assembler, replay, sse
from failsoft.models.chat_request import MAX_BODY, MAX_DEPTH, ChatRequest, decode_request
from failsoft.models.chunks import (
    CONTENT,
    CONTENT_KINDS,
    DONE,
    EMPTY,
    ERROR,
    FINISH,
    REASONING,
    ROLE,
    TOOL,
    USAGE,
    Chunk,
    read_chunk,
)

__all__ = [
    "CONTENT",
    "CONTENT_KINDS",
    "DONE",
    "DONE_EVENT",
    "EMPTY",
    "ERROR",
    "ERROR_EVENT",
    "FINISH",
    "HEARTBEAT",
    "MAX_BODY",
    "MAX_DEPTH",
    "REASONING",
    "ROLE",
    "TOOL",
    "USAGE",
    "Assembler",
    "ChatRequest",
    "Chunk",
    "decode_request",
    "error_body",
    "error_event",
    "read_chunk",
    "replay",
    "sse",
]

_encode = msgspec.json.Encoder().encode

HEARTBEAT: Final = b": keep-alive\n\n"
"""A comment that keeps proxies from closing a silent stream; clients skip it."""

_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
    504: "timeout_error",
}


def error_body(error: FailsoftError, *, code: str | None = None, status: int | None = None) -> bytes:
    """The body of an error response in OpenAI's shape, with our ``run_id`` and ``retry_after`` (seconds) if known.

    `code` and `status` (which chooses the ``type``) replace the error's own.
    """
    at = error.status if status is None else status
    body: dict[str, Any] = {
        "message": error.message,
        "type": _TYPES.get(at, "server_error"),
        "param": error.param,
        "code": code or error.code,
    }
    if error.run_id is not None:
        body["run_id"] = error.run_id
    if error.retry_after is not None:
        body["retry_after"] = error.retry_after
    return _encode({"error": body})


def error_event(error: FailsoftError, *, code: str | None = None, status: int | None = None) -> bytes:
    """The last event of a stream that failed after its start. It has no event name: SDKs look for ``error`` in the
    data of unnamed events only. No ``[DONE]`` follows it.
    """
    return sse(error_body(error, code=code, status=status))


ERROR_EVENT: Final = sse(
    b'{"error":{"message":"internal error","type":"server_error","param":null,"code":"internal_error"}}'
)
"""A ready-made error event, for when there is nothing better to say."""
