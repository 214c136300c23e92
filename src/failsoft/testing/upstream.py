"""A fake OpenAI upstream with every fault, on loopback: for testing what stands before one.

::

    async with FakeUpstream() as upstream:
        client = OpenAI(base_url=upstream.base_url, api_key="any")

What it does is chosen by the request's model: ``ok`` (or any name that is no fault) answers, a name of :data:`FAULTS`
shows that fault. ``upstream.script([...])`` plans the next requests instead, one name each. A fault may carry
numbers, ``"slow_drip:20:0.05"``. It keeps count of what it saw: attempts, open connections, answers closed in their
middle.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final

__all__ = ["FAULTS", "FakeUpstream", "Seen"]

FAULTS: Final = (
    "refused",
    "reset_before_headers",
    "tls_garbage",
    "text_garbage",
    "status_500",
    "status_503",
    "status_529",
    "status_429",
    "status_429_retry_after",
    "status_401",
    "status_404",
    "quota",
    "context_length",
    "content_filter",
    "bad_request",
    "error_under_200",
    "empty_200",
    "malformed_json",
    "no_choices",
    "null_content",
    "headers_never",
    "slow_first_token",
    "role_then_silence",
    "stall",
    "cut",
    "cut_before_content",
    "slow_drip",
    "no_finish_reason",
    "no_done",
    "bad_chunk",
    "error_in_stream",
    "wrong_length",
)
"""Names of faults. Those of streams show themselves in an answer that is not streamed by what is nearest to them."""

ANSWER: Final = "The quick brown fox jumps over the lazy dog."


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as it came: loop time, path, headers (names in lower case) and the decoded body."""

    at: float
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


@dataclass
class FakeUpstream:
    """The server. ``text`` is what it answers; ``pause`` seconds before each chunk; ``hold`` before the head.

    ``open`` counts connections, idle ones included; ``busy`` those with a request under way; ``count`` requests so far.
    """

    text: str = ANSWER
    pause: float = 0.0
    hold: float = 0.0
    keep: int = 10_000
    requests: deque[Seen] = field(init=False)
    closed_early: int = field(init=False, default=0)
    closed_at: deque[float] = field(init=False)
    open: int = field(init=False, default=0)
    busy: int = field(init=False, default=0)
    count: int = field(init=False, default=0)
    default: str | None = None
    port: int = 0

    def __post_init__(self) -> None:
        self.requests = deque(maxlen=self.keep)
        self.closed_at = deque(maxlen=self.keep)
        self._script: deque[str] = deque()
        self._server: asyncio.Server | None = None
        self._port = 0
        self._tasks: set[asyncio.Task[None]] = set()

    # --- life ------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> FakeUpstream:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, limit=2**20)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stops at once, in the middle of whatever it answers."""
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))
        if self._server is not None:
            await self._server.wait_closed()
            self._server = None

    def drop(self) -> None:
        """Closes every connection, in the middle of whatever it answers; new ones are taken."""
        for task in list(self._tasks):
            task.cancel()

    @property
    def base_url(self) -> str:
        """What a client takes as its base URL."""
        return f"http://127.0.0.1:{self._port}/v1"

    def script(self, names: Iterable[str]) -> None:
        """The next requests behave like these, in order; after them the model's name decides again."""
        self._script.extend(names)

    # --- serving ---------------------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.open += 1
        try:
            while await self._exchange(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, TimeoutError):
            pass
        except asyncio.CancelledError:
            pass  # by drop() or aclose(): nobody waits for this task, and asyncio's streams would log its end
        finally:
            self._tasks.discard(task)
            self.open -= 1
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request and its answer; whether the connection may be used again."""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except asyncio.IncompleteReadError:
            return False
        lines = head.split("\r\n")
        path = lines[0].split(" ")[1]
        headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:] if line)
        }
        raw = await reader.readexactly(int(headers.get("content-length", "0")))
        body = json.loads(raw) if raw else {}
        loop = asyncio.get_running_loop()
        self.count += 1
        self.requests.append(Seen(loop.time(), path, headers, body))
        plan = self._script.popleft() if self._script else self.default or str(body.get("model", "ok"))
        name, *numbers = plan.split(":")
        answering = asyncio.ensure_future(self._answer(name, [float(n) for n in numbers], path, body, writer))
        gone = asyncio.ensure_future(reader.read(1))
        self.busy += 1
        try:
            await asyncio.wait([answering, gone], return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                self.closed_early += 1
                self.closed_at.append(loop.time())
                return False
            again = answering.result()
        finally:
            self.busy -= 1
            for one in (answering, gone):
                one.cancel()
            await asyncio.gather(answering, gone, return_exceptions=True)
        return again

    async def _answer(
        self, name: str, numbers: list[float], path: str, body: dict[str, Any], writer: asyncio.StreamWriter
    ) -> bool:
        if self.hold:
            await asyncio.sleep(self.hold)
        if path.endswith("/models"):
            return await _json(writer, {"object": "list", "data": [{"id": "ok", "object": "model"}]})
        if path.endswith("/embeddings") and name not in FAULTS:
            return await _json(writer, _embeddings(body))
        at_once = _AT_ONCE.get(name)
        if at_once is not None:
            return await at_once(writer)
        if name in _STATUS:
            status, error, extra = _STATUS[name]
            return await _json(writer, {"error": error}, status=status, extra=extra)
        if body.get("stream"):
            return await self._stream(name, numbers, body, writer)
        return await self._whole(name, numbers, body, writer)

    async def _whole(self, name: str, numbers: list[float], body: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        answer = whole(body, self.text)
        choice = answer["choices"][0]
        if name in {"slow_first_token", "role_then_silence", "stall"}:
            await asyncio.sleep(numbers[0] if numbers else 3600.0)
        elif name == "slow_drip":
            await asyncio.sleep((numbers[1] if len(numbers) > 1 else 0.2) * 40)
        elif name == "null_content":
            choice["message"]["content"] = None
        elif name == "no_choices":
            answer["choices"] = []
        elif name in {"no_finish_reason", "no_done"}:
            choice["finish_reason"] = None
        elif name in {"cut", "cut_before_content", "bad_chunk"}:
            data = json.dumps(answer).encode()
            _head(writer, 200, "application/json", [f"Content-Length: {len(data)}"])
            writer.write(data[: len(data) // 2])
            await writer.drain()
            return False
        elif name == "error_in_stream":
            return await _json(writer, {"error": {"message": "boom", "type": "server_error", "code": None}})
        await asyncio.sleep(self.pause)
        return await _json(writer, answer)

    async def _stream(
        self, name: str, numbers: list[float], body: dict[str, Any], writer: asyncio.StreamWriter
    ) -> bool:
        _head(writer, 200, "text/event-stream", ["Transfer-Encoding: chunked", "Cache-Control: no-cache"])
        await writer.drain()
        sent = 0
        async for event in self._events(name, numbers, body):
            if event is None:  # cut here
                writer.transport.abort()
                return False
            if name == "slow_drip":
                for byte in (event[i : i + 8] for i in range(0, len(event), 8)):
                    await _chunk(writer, byte)
                    await asyncio.sleep(numbers[1] if len(numbers) > 1 else 0.2)
            else:
                await _chunk(writer, event)
            sent += 1
            if self.pause:
                await asyncio.sleep(self.pause)
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    async def _events(self, name: str, numbers: list[float], body: dict[str, Any]) -> AsyncIterator[bytes | None]:
        """The events of a streamed answer, as the fault has it; None cuts the connection."""
        make = _maker(body)
        words = [word + " " for word in self.text.split(" ")]
        words[-1] = words[-1].rstrip()
        role = make({"role": "assistant", "content": ""})
        if name in {"slow_first_token", "role_then_silence"}:
            yield role
            await asyncio.sleep(numbers[0] if numbers else 3600.0)
        elif name == "cut_before_content":
            yield role
            yield None
        elif name == "no_choices":
            for _ in range(3):
                yield make(None)
            yield b"data: [DONE]\n\n"
            return
        elif name == "null_content":
            yield role
            yield make({}, "stop")
            yield b"data: [DONE]\n\n"
            return
        elif name == "reasoning":
            yield role
            for step in range(int(numbers[0]) if numbers else 3):
                yield make({"reasoning_content": f"step {step} "})
                await asyncio.sleep(numbers[1] if len(numbers) > 1 else 0.0)
        else:
            yield role
        if _calls_tools(body) and name not in FAULTS:
            for event in _tool_events(make):
                yield event
            words = []
        after = int(numbers[0]) if numbers and name in {"stall", "cut", "bad_chunk", "error_in_stream"} else 3
        for number, word in enumerate(words):
            if number == after:
                if name == "stall":
                    await asyncio.sleep(3600.0)
                elif name == "cut":
                    yield None
                elif name == "bad_chunk":
                    yield b'data: {"choices": [{"delta": {"content": \n\n'
                elif name == "error_in_stream":
                    yield b'data: {"error": {"message": "boom", "type": "server_error", "code": null}}\n\n'
            for index in range(int(body.get("n") or 1)):
                yield make({"content": word}, None, index)
        if name != "no_finish_reason":
            reason = "tool_calls" if _calls_tools(body) and name not in FAULTS else "stop"
            for index in range(int(body.get("n") or 1)):
                yield make({}, reason, index)
        if (body.get("stream_options") or {}).get("include_usage"):
            yield make(None, usage=True)
        if name != "no_done":
            yield b"data: [DONE]\n\n"


# --- what is sent ----------------------------------------------------------------------------------------------------


def whole(body: dict[str, Any], text: str) -> dict[str, Any]:
    """The answer to a request that is not streamed."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    reason = "stop"
    if _calls_tools(body):
        function = {"name": "add", "arguments": '{"a": 1, "b": 2}'}
        message = {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "call_1", "type": "function", "function": function}],
        }
        reason = "tool_calls"
    elif (body.get("response_format") or {}).get("type") in {"json_schema", "json_object"}:
        message["content"] = '{"answer": 42}'
    return {
        "id": "chatcmpl-fake",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": body.get("model", "ok"),
        "choices": [
            {"index": index, "message": message, "finish_reason": reason} for index in range(int(body.get("n") or 1))
        ],
        "usage": {"prompt_tokens": 12, "completion_tokens": 10, "total_tokens": 22},
    }


def _calls_tools(body: dict[str, Any]) -> bool:
    """Tools are called by whom they are offered, until there is a result."""
    messages = body.get("messages") or [{}]
    return bool(body.get("tools")) and messages[-1].get("role") != "tool"


def _maker(body: dict[str, Any]) -> Callable[..., bytes]:
    def make(delta: dict[str, Any] | None, finish: str | None = None, index: int = 0, *, usage: bool = False) -> bytes:
        chunk: dict[str, Any] = {
            "id": "chatcmpl-fake",
            "object": "chat.completion.chunk",
            "created": 1_700_000_000,
            "model": body.get("model", "ok"),
            "choices": [] if delta is None else [{"index": index, "delta": delta, "finish_reason": finish}],
        }
        if usage:
            chunk["usage"] = {"prompt_tokens": 12, "completion_tokens": 10, "total_tokens": 22}
        return b"data: " + json.dumps(chunk, ensure_ascii=False).encode() + b"\n\n"

    return make


def _tool_events(make: Callable[..., bytes]) -> list[bytes]:
    """Two calls whose arguments interleave."""

    def call(index: int, **function: str) -> dict[str, Any]:
        start = {"id": f"call_{index + 1}", "type": "function"} if "name" in function else {}
        return {"tool_calls": [{"index": index, **start, "function": function}]}

    return [
        make(call(0, name="add", arguments="")),
        make(call(1, name="add", arguments="")),
        make(call(0, arguments='{"a": 1,')),
        make(call(1, arguments='{"a": 3,')),
        make(call(0, arguments=' "b": 2}')),
        make(call(1, arguments=' "b": 4}')),
    ]


def _embeddings(body: dict[str, Any]) -> dict[str, Any]:
    given = body.get("input")
    inputs = given if isinstance(given, list) else [given]
    data = [{"object": "embedding", "index": i, "embedding": [0.1, 0.2, float(i)]} for i in range(len(inputs))]
    usage = {"prompt_tokens": 3 * len(inputs), "total_tokens": 3 * len(inputs)}
    return {"object": "list", "data": data, "model": body.get("model", "ok"), "usage": usage}


def _head(writer: asyncio.StreamWriter, status: int, kind: str, extra: Iterable[str] = ()) -> None:
    lines = [f"HTTP/1.1 {status} X", f"Content-Type: {kind}", *extra]
    writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())


async def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
    await writer.drain()


async def _json(
    writer: asyncio.StreamWriter, body: dict[str, Any], *, status: int = 200, extra: Iterable[str] = ()
) -> bool:
    data = json.dumps(body).encode()
    _head(writer, status, "application/json", [f"Content-Length: {len(data)}", *extra])
    writer.write(data)
    await writer.drain()
    return True


async def _reset(writer: asyncio.StreamWriter) -> bool:
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
    return False


async def _tls(writer: asyncio.StreamWriter) -> bool:
    writer.write(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(64)))
    await writer.drain()
    return False


async def _garbage(writer: asyncio.StreamWriter) -> bool:
    writer.write(b"220 mail.example.com ESMTP\r\nwhat do you mean?\r\n")
    await writer.drain()
    return False


async def _never(writer: asyncio.StreamWriter) -> bool:
    await asyncio.sleep(3600.0)
    return False


async def _empty(writer: asyncio.StreamWriter) -> bool:
    _head(writer, 200, "application/json", ["Content-Length: 0"])
    await writer.drain()
    return True


async def _malformed(writer: asyncio.StreamWriter) -> bool:
    data = b'{"id": "x", "choices": [{"message": '
    _head(writer, 200, "application/json", [f"Content-Length: {len(data)}"])
    writer.write(data)
    await writer.drain()
    return True


async def _wrong_length(writer: asyncio.StreamWriter) -> bool:
    _head(writer, 200, "application/json", ["Content-Length: 100000"])
    writer.write(b'{"id": "x"}')
    await writer.drain()
    return False


async def _error_under_200(writer: asyncio.StreamWriter) -> bool:
    return await _json(writer, {"error": {"message": "overloaded", "type": "server_error", "code": "overloaded"}})


_AT_ONCE: Final[dict[str, Callable[[asyncio.StreamWriter], Awaitable[bool]]]] = {
    "refused": _reset,
    "reset_before_headers": _reset,
    "tls_garbage": _tls,
    "text_garbage": _garbage,
    "headers_never": _never,
    "empty_200": _empty,
    "malformed_json": _malformed,
    "wrong_length": _wrong_length,
    "error_under_200": _error_under_200,
}

_STATUS: Final[dict[str, tuple[int, dict[str, Any], tuple[str, ...]]]] = {
    "status_500": (500, {"message": "boom", "type": "server_error", "code": None}, ()),
    "status_503": (503, {"message": "overloaded", "type": "server_error", "code": None}, ()),
    "status_529": (529, {"message": "overloaded", "type": "overloaded_error", "code": None}, ()),
    "status_429": (429, {"message": "slow down", "type": "requests", "code": "rate_limit_exceeded"}, ()),
    "status_429_retry_after": (
        429,
        {"message": "slow down", "type": "requests", "code": "rate_limit_exceeded"},
        ("Retry-After: 47",),
    ),
    "status_401": (401, {"message": "bad key", "type": "invalid_request_error", "code": "invalid_api_key"}, ()),
    "status_404": (404, {"message": "no such model", "type": "invalid_request_error", "code": "model_not_found"}, ()),
    "quota": (429, {"message": "no money", "type": "insufficient_quota", "code": "insufficient_quota"}, ()),
    "context_length": (
        400,
        {
            "message": "This model's maximum context length is 8192 tokens.",
            "type": "invalid_request_error",
            "param": "messages",
            "code": "context_length_exceeded",
        },
        (),
    ),
    "content_filter": (400, {"message": "filtered", "type": "invalid_request_error", "code": "content_filter"}, ()),
    "bad_request": (400, {"message": "bad prompt", "type": "invalid_request_error", "param": "x", "code": None}, ()),
}
