"""Event streams: unbuffered, with heart-beats, ended by the client's going away, and bounded for each client.

What a client has not read yet is in its socket and at most one piece of the stream; until that is taken nothing more
is made for it. One that takes nothing for too long is cut off.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from failsoft.base.jsontext import json_text
from failsoft.server.link import link_of

__all__ = ["HEADERS", "EventStream", "Frames", "frame"]

HEADERS = {
    "cache-control": "no-cache, no-transform",
    "content-type": "text/event-stream; charset=utf-8",
    "x-accel-buffering": "no",  # nginx and what follows it pass every frame on at once
}
HEARTBEAT = b": alive\n\n"
_LAST_WORD = 0.5
RETRY = b"retry: 1000\n\n"
"""How long a browser is to wait, in milliseconds, before it comes back."""


def frame(body: Mapping[str, Any], *, event_id: str | None = None) -> bytes:
    """One event as it goes over the wire; JSON has no line breaks, so one ``data`` line is enough."""
    head = f"id: {event_id}\n" if event_id else ""
    return f"{head}data: {json_text(body)}\n\n".encode()


class Frames(Protocol):
    """Where a stream's frames come from, as fast as its client takes them."""

    async def take(self, wait: float) -> bytes | None:
        """The next frames; empty when there are none within `wait` seconds, None after the last."""
        ...


class EventStream(Response):
    """Sends `frames` as they come, a comment every `heartbeat` seconds of silence, and stops when the client goes.

    A client that takes nothing for ``patience`` seconds is cut off. However the stream ends, ``on_end`` is called:
    that is where a run is let go. While it is open ``among`` has a function that ends it.
    """

    def __init__(
        self,
        frames: Frames,
        *,
        heartbeat: float,
        patience: float,
        headers: Mapping[str, str] | None = None,
        on_end: Callable[[], object] | None = None,
        among: set[Callable[[], object]] | None = None,
    ) -> None:
        super().__init__(headers={**HEADERS, **(headers or {})})
        del self.headers["content-length"]
        self._frames = frames
        self._heartbeat = heartbeat
        self._patience = patience
        self._on_end = on_end
        self._among = among if among is not None else set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Runs the stream to its end or the client's."""
        link = link_of(scope)
        try:
            if not await self._stream(receive, send) and link is not None:
                link.abort()  # closing would wait for what is not read
        finally:
            if self._on_end is not None:
                self._on_end()

    async def _stream(self, receive: Receive, send: Send) -> bool:
        """False when the client did not read."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with asyncio.TaskGroup() as tasks:
            sending = tasks.create_task(self._send_all(send))
            watching = tasks.create_task(self._watch(receive))
            self._among.add(sending.cancel)
            try:
                await asyncio.wait((sending, watching), return_when=asyncio.FIRST_COMPLETED)
            finally:
                self._among.discard(sending.cancel)
            ended = sending.cancelled()
            sending.cancel()
            watching.cancel()
        if ended:  # from outside: the client is there, and is to come back
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_WORD):
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
                return True
            return False
        return sending.cancelled() or sending.result()

    async def _send_all(self, send: Send) -> bool:
        # The headers go out at once, before the first event: a client knows that it was accepted.
        piece: bytes | None = RETRY
        try:
            while piece is not None:
                async with asyncio.timeout(self._patience):
                    await send({"type": "http.response.body", "body": piece or HEARTBEAT, "more_body": True})
                piece = await self._frames.take(self._heartbeat)
            async with asyncio.timeout(self._patience):
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:
            return False
        return True

    @staticmethod
    async def _watch(receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
