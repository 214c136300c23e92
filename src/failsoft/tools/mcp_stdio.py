"""An MCP server as a child process, spoken to over its pipes, with a bound on everything that it may do.

The SDK has a transport of its own for this; ours bounds the length of a message, notices at once when the process ends
or writes half a message, keeps secrets out of its environment, and kills it with all that it has started.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections import deque
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

from failsoft.kernel.descendants import MARK, await_end, kill_with_descendants
from failsoft.kernel.environment import without_secrets

__all__ = ["ServerProcess", "connected"]

_log = logging.getLogger(__name__)

MESSAGE_LIMIT: Final = 16_000_000
"""Bytes of one message."""
_SAID: Final = 16_384
"""Bytes kept of what a server writes to its standard error."""
_JUNK: Final = 100
"""Lines on standard output that are no messages before the server is given up."""
_RATE: Final = 200.0
_BURST: Final = 1_000.0
"""Messages a second, beside one for each that is sent to it, and at once, before a server is given up: each costs the
loop time that others need.
"""
_GRACE: Final = 0.5
"""Seconds that a server has to end by itself once its standard input is closed."""


class ServerProcess:
    """What is known of a server's process: ``lost`` is set, with the reason in ``why``, when it can be used no more."""

    def __init__(self, process: asyncio.subprocess.Process, mark: str) -> None:
        self.process = process
        self.mark = mark
        self.lost = asyncio.Event()
        self.why = ""
        self._said: deque[bytes] = deque(maxlen=64)

    @property
    def said(self) -> str:
        """The end of what it wrote to its standard error."""
        return b"".join(self._said)[-_SAID:].decode(errors="replace")

    def lose(self, why: str) -> None:
        """Gives the process up."""
        if not self.lost.is_set():
            self.why = why
            self.lost.set()

    async def listen(self, stream: asyncio.StreamReader) -> None:
        """Reads its standard error, so that it never blocks on it."""
        while chunk := await stream.read(4096):
            self._said.append(chunk[-_SAID:])

    async def end(self) -> None:
        """Lets it end by itself for a moment, then kills it with all that it has started."""
        process = self.process
        if process.stdin is not None:
            process.stdin.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(_GRACE):
                await process.wait()
        await asyncio.to_thread(_kill, process.pid, self.mark, process.returncode is None)
        with suppress(TimeoutError):
            async with asyncio.timeout(2):
                await process.wait()
        transport = getattr(process, "_transport", None)
        if transport is not None:
            transport.close()


def _kill(pid: int, mark: str, running: bool) -> None:
    if running:
        await_end(kill_with_descendants(pid, mark))
        return
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)  # what it has left behind in its group


@asynccontextmanager
async def connected(
    command: Sequence[str], *, cwd: Path | None, env: Mapping[str, str], allow_env: Collection[str]
) -> AsyncIterator[tuple[ServerProcess, Any]]:
    """The process and a transport for the SDK's client; ``OSError`` when it cannot be started."""
    import anyio
    from mcp.shared.message import SessionMessage
    from mcp.types import jsonrpc_message_adapter

    mark = f"mcp.{os.getpid()}.{time.monotonic_ns()}"
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=MESSAGE_LIMIT,
        start_new_session=True,
        cwd=cwd,
        env={**without_secrets(os.environ, allow_env), **env, MARK: mark},
    )
    server = ServerProcess(process, mark)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    stdin, stdout = process.stdin, process.stdout
    tokens = _BURST
    incoming_in, incoming = anyio.create_memory_object_stream[Any](0)
    outgoing, outgoing_out = anyio.create_memory_object_stream[Any](0)

    async def read() -> None:
        nonlocal tokens
        junk = 0
        loop = asyncio.get_running_loop()
        before = loop.time()
        async with incoming_in:
            while True:
                now = loop.time()
                tokens = min(_BURST, tokens + (now - before) * _RATE)
                before = now
                try:
                    line = await stdout.readuntil(b"\n")
                except asyncio.IncompleteReadError as error:
                    server.lose("it wrote half a message and ended" if error.partial.strip() else "it has ended")
                    return
                except asyncio.LimitOverrunError:
                    server.lose(f"it wrote a message of more than {MESSAGE_LIMIT} bytes")
                    return
                tokens -= 1
                if tokens < 0:
                    server.lose(f"it wrote more than {_RATE:g} messages a second")
                    return
                if not line.strip():
                    continue
                try:
                    message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                except (ValueError, RecursionError):
                    junk += 1
                    if line.lstrip()[:1] == b"{" or junk > _JUNK:
                        server.lose("it wrote something that is no message")
                        return
                    continue
                await incoming_in.send(SessionMessage(message))

    async def write() -> None:
        nonlocal tokens
        async with outgoing_out:
            async for one in outgoing_out:
                tokens += 1
                data = one.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
                try:
                    stdin.write(data)
                    await stdin.drain()
                except (ConnectionError, RuntimeError):
                    server.lose("it reads no more")
                    return

    async def watch() -> None:
        code = await process.wait()
        await asyncio.sleep(0.05)  # what it has written is still read
        server.lose(f"it ended with exit code {code}" if code >= 0 else f"it was killed by signal {-code}")

    async def close_when_lost() -> None:
        await server.lost.wait()
        await incoming_in.aclose()

    async def quietly(work: Any) -> None:
        with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError, ConnectionError):
            await work

    tasks = [
        asyncio.create_task(quietly(work), name=f"mcp {command[0]}")
        for work in (read(), write(), watch(), close_when_lost(), server.listen(process.stderr))
    ]

    @asynccontextmanager
    async def transport() -> AsyncIterator[tuple[Any, Any]]:
        yield incoming, outgoing

    try:
        yield server, transport()
    finally:
        server.lose("it was closed")
        ending = asyncio.ensure_future(server.end())
        cancelled: asyncio.CancelledError | None = None
        while not ending.done():  # bounded: it ends in a few seconds, whatever the process does
            try:
                await asyncio.shield(ending)
            except asyncio.CancelledError as error:
                cancelled = error
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for stream in (incoming_in, incoming, outgoing, outgoing_out):
            stream.close()
        if cancelled is not None:
            raise cancelled
