"""Listening: uvicorn with uvloop and httptools, our bounds on what clients may send, and an end that drains.

On SIGTERM or Ctrl-C no new connection is taken, running requests may finish for ``server.drain`` seconds, then
what still runs is cut, which answers those who still wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable
from typing import Any

import uvicorn

from failsoft.base.errors import BadInput
from failsoft.config.sections import ServerSettings
from failsoft.server.link import linked_protocol

__all__ = ["Listening", "Readiness", "listen_on", "loop_factory"]

_LAST_WORDS = 5.0
"""Seconds that responses have after their calls were cut at the end of draining."""


class Readiness:
    """Whether new requests are welcome; ``why`` says why not. ``streams`` are functions that end the open streams."""

    def __init__(self) -> None:
        self.why: str | None = None
        self.streams: set[Callable[[], object]] = set()

    def end_streams(self) -> None:
        """Ends the streams that are still open: of runs that go on elsewhere, or wait for a person."""
        for end in list(self.streams):
            end()


def listen_on(host: str, port: int) -> socket.socket:
    """A listening socket; raises :class:`~failsoft.base.errors.BadInput` naming the flag when it cannot be had."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048, dualstack_ipv6=False)
    except socket.gaierror:
        raise BadInput(f"--host: {host!r} is no address of this machine", param="host") from None
    except OSError as error:
        param = "host" if error.errno == errno.EADDRNOTAVAIL else "port"
        raise BadInput(f"--{param}: cannot listen on {host}:{port}: {error.strerror}", param=param) from None


class Listening(uvicorn.Server):
    """Serves an ASGI application on one socket, until :meth:`stop` or a signal ends it gracefully.

    ``cut`` is called when the time to drain is over.
    """

    def __init__(
        self,
        application: Any,
        sock: socket.socket,
        settings: ServerSettings,
        *,
        readiness: Readiness,
        cut: Callable[[], None],
        on_listening: Callable[[str], None] | None = None,
    ) -> None:
        self._sock = sock
        self._drain = settings.drain
        self._cut = cut
        host, port = sock.getsockname()[:2]
        self.address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        """Where it listens, as a URL."""
        self._readiness = readiness
        self._on_listening = on_listening
        self._stopping = asyncio.Event()
        super().__init__(
            uvicorn.Config(
                application,
                http=linked_protocol(settings.max_headers),
                ws="none",
                lifespan="off",
                access_log=False,
                log_config=None,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=30,
                timeout_graceful_shutdown=int(settings.drain + _LAST_WORDS),
            )
        )

    async def serve_until_stopped(self) -> None:
        """Serves until :meth:`stop` or a signal; returns when everything has been answered or cancelled."""
        await self.serve(sockets=[self._sock])

    async def main_loop(self) -> None:
        """Keeps the date of responses until :meth:`stop`; uvicorn's own wakes ten times a second to look."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._stopping.wait()

    def stop(self) -> None:
        """Begins the graceful end; the second time, the quick one."""
        self.force_exit = self.should_exit
        self.should_exit = True
        self._stopping.set()

    def capture_signals(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override]  # a generator there
        """Leaves signals to whoever runs the process."""
        return contextlib.nullcontext()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts listening and says so."""
        await super().startup(sockets)
        if self._on_listening is not None:
            self._on_listening(self.address)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drains, then cuts what still runs."""
        self._readiness.why = "shutting down"
        timer = asyncio.get_running_loop().call_later(self._drain, self._cut)
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.address} {'stopping' if self.should_exit else 'serving'}>"


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """A maker of event loops: uvloop's where it is installed, else asyncio's."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    factory: Callable[[], Any] = uvloop.new_event_loop
    return factory
