"""A proxy that does harm on request, in front of any HTTP or TCP server.

Faults are leases (:mod:`failsoft.drills.leases`), added and taken away while it runs, here or over HTTP
(:mod:`failsoft.drills.proxy_control`). Each exchange is struck or spared by itself; in TCP mode each connection is.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from failsoft.base.errors import BadInput
from failsoft.drills.http_relay import PIECE, BadMessage, Head, body_of, chunk, read_head
from failsoft.drills.leases import LeaseBook
from failsoft.drills.toxics import Aborted, Term, Toxic

__all__ = ["DrillProxy", "Target", "parse_target"]

_CONNECTIONS: Final = 2000
"""Connections at once; more are closed at once."""
_CONNECT: Final = 10.0
"""Seconds until a connection to the target must stand."""
_DRAINED: Final = 64 << 20
"""Bytes of a request's body that are thrown away when the answer is ours."""


@dataclass(frozen=True, slots=True)
class Target:
    """What the proxy stands in front of. ``host_header`` replaces the client's when it was given as a URL."""

    host: str
    port: int
    tls: bool = False
    host_header: str | None = None


def parse_target(text: str) -> Target:
    """Reads ``HOST:PORT``, ``http://HOST[:PORT]`` or ``https://HOST[:PORT]``."""
    scheme, mark, rest = text.partition("://")
    url = bool(mark)
    if not url:
        scheme, rest = "", text
    place = rest.split("/", 1)[0]
    host, colon, port = place.rpartition(":")
    if not colon or place.endswith("]"):
        host, port = place, {"http": "80", "https": "443"}.get(scheme, "")
    if scheme not in ("", "http", "https") or not host or not port.isdigit() or not 0 <= int(port) <= 65535:
        raise BadInput(f"{text!r} should be HOST:PORT or a URL like https://api.example.com", param="to")
    return Target(host.strip("[]"), int(port), scheme == "https", place if url else None)


class _Exchange:
    """One exchange as one toxic sees it; see :class:`~failsoft.drills.toxics.Exchange`."""

    def __init__(self, conversation: _Conversation, term: Term) -> None:
        self._conversation = conversation
        self._term = term

    @property
    def term(self) -> Term:
        return self._term

    @property
    def length(self) -> int | None:
        return self._conversation.length

    @length.setter
    def length(self, length: int | None) -> None:
        self._conversation.length = length

    async def answer(self, status: int, body: bytes, *, kind: str = "application/json", **headers: str) -> None:
        await self._conversation.answer(status, body, kind, headers)

    def abort(self) -> None:
        self._conversation.abort()

    def close(self) -> None:
        self._conversation.over = True


class _Conversation:
    """What happens on one client's connection, one exchange after the other."""

    def __init__(self, proxy: DrillProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.proxy = proxy
        self.reader = reader
        self.writer = writer
        self.upstream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.length: int | None = None
        self.over = False
        self._request_left: AsyncIterator[bytes] | None = None
        self._ahead = b""

    # --- what toxics may do -------------------------------------------------------------------------------------------

    async def answer(self, status: int, body: bytes, kind: str, headers: dict[str, str]) -> None:
        drained = 0
        if self._request_left is not None:
            async for piece in self._request_left:
                drained += len(piece)
                if drained > _DRAINED:
                    self.over = True
                    break
        fields = [("Content-Type", kind), ("Content-Length", str(len(body))), *headers.items()]
        self.writer.write(Head(f"HTTP/1.1 {status} Injected", fields).encode() + body)
        await self.writer.drain()

    def abort(self) -> None:
        self.over = True
        sock = self.writer.get_extra_info("socket")
        if sock is not None:
            with suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    # --- HTTP ---------------------------------------------------------------------------------------------------------

    async def serve_http(self) -> None:
        """Exchanges until either side ends the connection."""
        while not self.over:
            head = await read_head(self.reader, already=self._ahead)
            self._ahead = b""
            if head is None:
                return
            await self._watched(head)

    async def _watched(self, head: Head) -> None:
        """One exchange, given up when the client goes away in the middle of it."""
        self._request_left = body_of(self.reader, head, to_end=False)
        request = b"".join([piece async for piece in self._request_left]) if _small(head) else None
        if request is None:  # too large to be held: its sender is not watched while it sends
            await self._exchange(head, None)
            return
        exchange = asyncio.ensure_future(self._exchange(head, request))
        gone = asyncio.ensure_future(self.reader.read(1))
        try:
            await asyncio.wait([exchange, gone], return_when=asyncio.FIRST_COMPLETED)
            if not exchange.done() and not gone.result():
                self.over = True
                return
            await exchange
            if gone.done() and not gone.cancelled() and gone.exception() is None:
                self._ahead = gone.result()
                self.over = self.over or not self._ahead
        finally:
            for one in (exchange, gone):
                one.cancel()
            await asyncio.gather(exchange, gone, return_exceptions=True)

    def _struck(self) -> list[tuple[Toxic, _Exchange]]:
        now = asyncio.get_running_loop().time()
        drawn = ((lease, lease.toxic_now(now)) for lease in self.proxy.faults)
        return [(toxic, _Exchange(self, lease.term)) for lease, toxic in drawn if toxic is not None]

    async def _exchange(self, head: Head, request: bytes | None) -> None:
        struck = self._struck()
        for toxic, view in struck:
            if await toxic.ask(view) or self.over:
                return
        reader, writer = await self._connected()
        host = self.proxy.target.host_header
        sent = head.without("host").with_("Host", host) if host is not None else head
        if sent.get("expect") is not None:
            sent = sent.without("expect")
            self.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        writer.write(sent.encode())
        if request is not None:
            writer.write(chunk(request) + (chunk(b"") if request else b"") if head.chunked else request)
        elif self._request_left is not None:
            async for piece in self._request_left:
                writer.write(chunk(piece) if head.chunked else piece)
                await writer.drain()
            if head.chunked:
                writer.write(chunk(b""))
        await writer.drain()
        answer = await read_head(reader)
        while answer is not None and 100 <= answer.status < 200 and answer.status != 101:
            self.writer.write(answer.encode())
            answer = await read_head(reader)
        if answer is None:
            raise BadMessage("the target ended the connection without an answer")
        if answer.status == 101:
            self.writer.write(answer.encode())
            self.over = True
            await self._both_ways(reader, writer, [])
            return
        await self._pass_on(head, answer, reader, struck)
        if answer.closes or head.closes:
            self.over = True

    async def _pass_on(
        self, head: Head, answer: Head, reader: asyncio.StreamReader, struck: list[tuple[Toxic, _Exchange]]
    ) -> None:
        bodiless = head.first.startswith("HEAD ") or answer.status in (204, 304)
        to_end = not bodiless and not answer.chunked and answer.length is None
        if bodiless:
            self.writer.write(answer.encode())
            await self.writer.drain()
            return
        self.length = answer.length
        body: AsyncIterator[bytes] = body_of(reader, answer, to_end=to_end)
        for toxic, view in reversed(struck):
            body = toxic.body(body, view)
        rewritten = any(toxic.rewrites for toxic, _ in struck)
        if rewritten:
            self.length = None
        begun = False
        framed = False

        def begin() -> None:
            nonlocal begun, framed
            begun, framed = True, self.length is None
            shown = answer.without("content-length", "transfer-encoding")
            shown = (
                shown.with_("Transfer-Encoding", "chunked")
                if framed
                else shown.with_("Content-Length", str(self.length))
            )
            self.writer.write(shown.encode())

        if answer.chunked and not rewritten:  # heads of streams go out before their first event
            begin()
        try:
            async with aclosing(body) as pieces:  # type: ignore[type-var]  # every one of them is a generator
                async for piece in pieces:
                    if not begun:
                        begin()
                    if piece:
                        self.writer.write(chunk(piece) if framed else piece)
                        await self.writer.drain()
        except Aborted:
            with suppress(ConnectionError):
                await self.writer.drain()
            await asyncio.sleep(0.01)  # what was written is given the time to go out before the reset
            self.abort()
            return
        if not begun:
            begin()
        if framed:
            self.writer.write(chunk(b""))
        await self.writer.drain()
        if to_end:
            self.over = True

    # --- bytes --------------------------------------------------------------------------------------------------------

    async def serve_tcp(self) -> None:
        """One connection, passed through."""
        struck = self._struck()
        for toxic, view in struck:
            if await toxic.ask(view) or self.over:
                return
        reader, writer = await self._connected()
        await self._both_ways(reader, writer, struck)

    async def _both_ways(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, struck: list[tuple[Toxic, _Exchange]]
    ) -> None:
        async def pieces(source: asyncio.StreamReader) -> AsyncIterator[bytes]:
            while piece := await source.read(PIECE):
                yield piece

        async def pump(body: AsyncIterator[bytes], sink: asyncio.StreamWriter) -> None:
            async for piece in body:
                sink.write(piece)
                await sink.drain()
            with suppress(OSError, RuntimeError):
                sink.write_eof()

        answers: AsyncIterator[bytes] = pieces(reader)
        for toxic, view in reversed(struck):
            answers = toxic.body(answers, view)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(pump(pieces(self.reader), writer))
                group.create_task(pump(answers, self.writer))
        except ExceptionGroup as errors:
            if errors.subgroup(Aborted) is None:
                raise ConnectionError("the connection ended") from None
            self.abort()

    # --- the target ---------------------------------------------------------------------------------------------------

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self.upstream is not None and not self.upstream[0].at_eof():
            return self.upstream
        target = self.proxy.target
        async with asyncio.timeout(_CONNECT):
            self.upstream = await asyncio.open_connection(
                target.host, target.port, limit=1 << 17, ssl=True if target.tls else None
            )
        return self.upstream

    def end(self) -> None:
        """Closes both sides."""
        self.writer.close()
        if self.upstream is not None:
            self.upstream[1].transport.abort()


def _small(head: Head) -> bool:
    return not head.chunked and (head.length or 0) <= 1 << 20


class DrillProxy:
    """The proxy. Enter it on a loop; ``faults`` are what it does. ``port`` 0 takes a free one, see ``address``."""

    def __init__(
        self, target: Target, *, host: str = "127.0.0.1", port: int = 0, tcp: bool = False, seed: int | None = None
    ) -> None:
        self.target = target
        self.faults = LeaseBook(seed=seed, tcp=tcp)
        self.exchanges = 0
        self._host, self._port, self._tcp = host, port, tcp
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        assert self._server is not None
        found = self._server.sockets[0].getsockname()
        return str(found[0]), int(found[1])

    @property
    def connections(self) -> int:
        """Connections of clients now."""
        return len(self._tasks)

    async def __aenter__(self) -> Self:
        try:
            self._server = await asyncio.start_server(self._serve, self._host, self._port, limit=1 << 16)
        except OSError as error:
            raise BadInput(f"--listen: {self._host}:{self._port}: {error.strerror or error}", param="listen") from None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Ends every fault and every connection."""
        self.faults.close()
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))
        if self._server is not None:
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._tasks) >= _CONNECTIONS:
            writer.close()
            return
        self._tasks.add(task)
        conversation = _Conversation(self, reader, writer)
        try:
            await (conversation.serve_tcp() if self._tcp else conversation.serve_http())
        except (OSError, EOFError, TimeoutError, BadMessage, asyncio.LimitOverrunError):
            pass  # the client sees its connection end, as it would without us
        except asyncio.CancelledError:
            pass  # by aclose(): nobody waits for this task, and asyncio's streams would log its end
        finally:
            self._tasks.discard(task)
            conversation.end()

    def __repr__(self) -> str:
        return f"<DrillProxy to={self.target.host}:{self.target.port} faults={len(self.faults)}>"
