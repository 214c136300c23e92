"""A streamed answer on its way to the client.

Its headers are held back until the first content, so that a failure before it is an error with its own status; after
``commit_after`` seconds they go all the same, and comments keep proxies from closing the silence. The client sets the
pace: what it does not read makes the call wait, with nothing more kept for it than one piece and the socket's buffer,
and a client that leaves it unread for too long is cut off.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from failsoft.models.wire import HEARTBEAT
from failsoft.server.link import Link
from failsoft.server.plain import Send, as_headers

__all__ = ["Outlet"]


class Outlet:
    """Use it in ``async with``; ``head`` gives the header lines, ``unread`` is called when the client does not read."""

    __slots__ = (
        "_commit_after", "_every", "_head", "_last", "_link", "_loop", "_send", "_task", "_timer", "_unread",
        "_wait", "blocked", "early", "opened",
    )  # fmt: skip

    def __init__(
        self,
        send: Send,
        head: Callable[[], bytes],
        unread: Callable[[], None],
        *,
        link: Link | None,
        commit_after: float,
        every: float,
        wait: float,
    ) -> None:
        self._send = send
        self._head = head
        self._unread = unread
        self._link = link
        self._commit_after = commit_after
        self._every = every
        self._wait = wait
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.opened = False
        """Whether the headers are out."""
        self.early = False
        """Whether they went before there was content."""
        self.blocked = False
        """Whether a write waits for the client."""

    async def __aenter__(self) -> Outlet:
        self._timer = self._loop.call_later(min(self._commit_after, self._every), self._due)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._quiet()

    def put(self, body: bytes) -> Awaitable[None] | None:
        """Sends whole events; gives what has to be awaited for it, if anything has."""
        link, task = self._link, self._task
        if link is None or not self.opened or (task is not None and not task.done()):
            return self.write(body)
        self._last = self._loop.time()
        link.write(body)
        return self._drained(link) if link.paused else None

    async def _drained(self, link: Link) -> None:
        self.blocked = True
        await link.drained()
        self.blocked = False

    async def write(self, body: bytes) -> None:
        """Sends whole events; waits while the client does not read."""
        task = self._task
        if task is not None and not task.done():
            self.blocked = True
            await task
            self.blocked = False
        if not self.opened:
            await self._open()
        if self._link is None:
            self._last = self._loop.time()
            self.blocked = True
            await self._send({"type": "http.response.body", "body": body, "more_body": True})
            self.blocked = False
        elif (waiting := self.put(body)) is not None:
            await waiting

    async def end(self, body: bytes) -> None:
        """Sends the last events and ends the response."""
        await self._quiet()
        if not self.opened:
            await self._open()
        if self._link is not None:
            self._link.finish(body)
            return
        self.blocked = True
        await self._send({"type": "http.response.body", "body": body, "more_body": False})
        self.blocked = False

    async def _open(self) -> None:
        self.opened = True
        if self._link is not None:
            self._link.begin(200, self._head())
            return
        await self._send({"type": "http.response.start", "status": 200, "headers": as_headers(self._head())})

    def _due(self) -> None:
        """Looks, now and then, whether there was silence; a stream that flows pays one timer for it."""
        now = self._loop.time()
        silent = now - self._last
        if self.blocked:
            if silent >= self._wait:
                self._timer = None
                self._unread()
                return
            after = min(self._every, self._wait - silent)
        elif silent < (pause := self._every if self.opened else self._commit_after):
            after = pause - silent
        else:
            if self._task is None or self._task.done():
                self._task = self._loop.create_task(self._beat(), name="heartbeat")
            after = self._every
        self._timer = self._loop.call_later(max(after, 0.001), self._due)

    async def _beat(self) -> None:
        if not self.opened:
            self.early = True
            await self._open()
        self._last = self._loop.time()
        if self._link is not None:
            self._link.write(HEARTBEAT)
        else:
            await self._send({"type": "http.response.body", "body": HEARTBEAT, "more_body": True})

    async def _quiet(self) -> None:
        """No more comments."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        task, self._task = self._task, None
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait([task])
