"""Reading what an MCP server answered: its value, or the error that it means."""

from __future__ import annotations

from typing import Any, Final

from failsoft.base.errors import (
    DownstreamError,
    DownstreamRejected,
    DownstreamUnavailable,
    FailsoftError,
    MalformedResult,
    ToolFailed,
)
from failsoft.tools.registry import ToolSpec

__all__ = ["read_error", "read_result"]

_EXCERPT: Final = 500
_UNAVAILABLE: Final = frozenset({-32000, -32001, -32099})
"""Codes for a lost connection and a request that timed out, by the SDK or by a server."""
_REJECTED: Final = frozenset({-32600, -32601, -32602})


def read_result(result: Any, spec: ToolSpec) -> Any:
    """The structured content, or the one text, or a list of what there is. Raises :class:`ToolFailed` for an error."""
    blocks = list(getattr(result, "content", None) or ())
    if getattr(result, "is_error", False):
        said = " ".join(" ".join(str(one.text) for one in blocks if one.type == "text").split())[:_EXCERPT]
        raise ToolFailed(f"tool {spec.name!r} failed: {said or 'it does not say why'}")
    structured = getattr(result, "structured_content", None)
    if structured is not None:
        return structured
    values = [_value(one) for one in blocks]
    return values[0] if len(values) == 1 else values or None


def _value(block: Any) -> Any:
    if block.type == "text":
        return block.text
    return block.model_dump(mode="json", by_alias=True, exclude_none=True)


def read_error(error: Exception, spec: ToolSpec, text: str) -> FailsoftError:
    """What an exception of the SDK means."""
    from mcp.shared.exceptions import MCPError

    if isinstance(error, FailsoftError):
        return error
    name = spec.name
    if isinstance(error, MCPError):
        said = "".join(one for one in str(error.message) if one.isprintable())[:_EXCERPT]
        details = {"mcp_code": error.code}
        if error.code in _UNAVAILABLE or "session terminated" in said.lower():
            return DownstreamUnavailable(f"tool {name!r}: {said}", downstream=spec.downstream, details=details)
        if said.startswith(("Unexpected content type", "Failed to parse", "server answered a request with 202")):
            return MalformedResult(
                f"tool {name!r}: {said.partition(': ')[0]}", downstream=spec.downstream, details=details
            )
        if error.code in _REJECTED:
            return DownstreamRejected(f"tool {name!r}: {said}", downstream=spec.downstream, details=details)
        return DownstreamError(f"tool {name!r}: {said}", downstream=spec.downstream, details=details)
    module = type(error).__module__.partition(".")[0]
    if isinstance(error, ConnectionError | EOFError | OSError) or module in ("anyio", "httpx2", "httpcore2"):
        return DownstreamUnavailable(f"tool {name!r}: the connection broke: {text}", downstream=spec.downstream)
    return MalformedResult(f"tool {name!r} was answered with what cannot be read: {text}", downstream=spec.downstream)
