"""Event streams: unbuffered, with heartbeats, ended by the client's going away, one frame for each event.

A client that reads too slowly only loses its own stream: the buffer between run and client is bounded where the run's
events are subscribed to, and what the socket does not take makes this response wait, nobody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from failsoft.base.jsontext import json_text

__all__ = ["EventStream", "frame"]

HEADERS = {
    "cache-control": "no-cache, no-transform",
    "content-type": "text/event-stream; charset=utf-8",
    "x-accel-buffering": "no",  # nginx and what follows it pass every frame on at once
}
HEARTBEAT = b": alive\n\n"


def frame(body: Mapping[str, Any], *, event_id: str | None = None) -> bytes:
    """One event as it goes over the wire; JSON has no line breaks, so one ``data`` line is enough."""
    head = f"id: {event_id}\n" if event_id else ""
    return f"{head}data: {json_text(body)}\n\n".encode()


class EventStream(Response):
    """Sends `frames` as they come, a comment every `heartbeat` seconds of silence, and stops when the client goes.

    However the stream ends, the iterator is closed and ``on_end`` called: that is where a run is let go.
    """

    def __init__(
        self,
        frames: AsyncIterator[bytes],
        *,
        heartbeat: float,
        headers: Mapping[str, str] | None = None,
        on_end: Callable[[], object] | None = None,
    ) -> None:
        super().__init__(headers={**HEADERS, **(headers or {})})
        del self.headers["content-length"]
        self._frames = frames
        self._heartbeat = heartbeat
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Runs the stream to its end or the client's."""
        try:
            await self._stream(receive, send)
        finally:
            if self._on_end is not None:
                self._on_end()

    async def _stream(self, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        # The headers go out at once, before the first event: a client knows that it was accepted.
        await send({"type": "http.response.body", "body": HEARTBEAT, "more_body": True})
        async with asyncio.TaskGroup() as tasks:
            sending = tasks.create_task(self._send_all(send))
            watching = tasks.create_task(self._watch(receive))
            await asyncio.wait((sending, watching), return_when=asyncio.FIRST_COMPLETED)
            sending.cancel()
            watching.cancel()

    async def _send_all(self, send: Send) -> None:
        frames = self._frames
        next_frame: asyncio.Task[bytes] | None = None
        try:
            while True:
                if next_frame is None:
                    next_frame = asyncio.ensure_future(anext(frames))
                done, _ = await asyncio.wait((next_frame,), timeout=self._heartbeat)
                if not done:
                    await send({"type": "http.response.body", "body": HEARTBEAT, "more_body": True})
                    continue
                try:
                    body = next_frame.result()
                except StopAsyncIteration:
                    break
                finally:
                    next_frame = None
                await send({"type": "http.response.body", "body": body, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            if next_frame is not None:
                next_frame.cancel()
                await asyncio.wait((next_frame,))
            close = getattr(frames, "aclose", None)
            if close is not None:
                await close()

    @staticmethod
    async def _watch(receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
