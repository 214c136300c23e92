"""MCP servers as sources of tools.

::

    files = McpServer("files", command=["uvx", "mcp-server-git", "--repository", "."], kind="query")
    desk = McpServer("desk", url="https://desk.example.com/mcp", secrets={"Authorization": "Bearer ${DESK_TOKEN}"})
    agent = Agent("helper", tools=ToolRegistry([local_tool], sources=[files, desk]), planners=[…])

Each server is a downstream of its own, kept up by a task of its own: started within a bound, watched, started again
with growing pauses when it is lost. What is lost in mid-call fails that call at once. Which tools it has is asked once
per connection, never on a call's time. A call's limit is hard: the server is told that nobody waits any more, and
whether it listens or not, the call has ended.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import math
import re
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from failsoft.base.clock import Sources
from failsoft.base.errors import BadInput, DownstreamUnavailable, FailsoftError
from failsoft.base.outcomes import Kind
from failsoft.kernel.guard import Guard
from failsoft.tools.arguments import ArgumentSchema
from failsoft.tools.mcp_answer import read_error, read_result
from failsoft.tools.registry import Tool, ToolContext, ToolSpec, seconds
from failsoft.tools.results import checked_result
from failsoft.tools.secret_text import SecretText

__all__ = ["McpServer", "McpStatus", "McpTool"]

_log = logging.getLogger(__name__)

TOOLS: Final = 500
"""Tools taken of one server."""
PAGES: Final = 20
SCHEMA_LIMIT: Final = 100_000
"""Characters of one tool's schema."""
_DESCRIPTION: Final = 2_000
_STEADY: Final = 30.0
"""Seconds after which a server counts as up, and its next pause is the first again."""
_LEAVE: Final = 2.0
"""Seconds that the end of a connection may take."""
_TELL: Final = 0.02
"""Seconds between two reports of a call's progress."""
_REFRESH: Final = 1.0
"""Seconds between two looks at the tools, however often a server says that they have changed."""

State = Literal["starting", "ready", "down", "closed"]


@dataclass(frozen=True, slots=True)
class McpStatus:
    """How a server is: ``why`` it is not ready, ``next_try`` in seconds, ``starts`` so far, ``skipped`` tools by name
    with the reason, ``said``: the end of what the process wrote to its standard error.
    """

    state: State
    why: str
    tools: int
    starts: int
    next_try: float | None
    skipped: Mapping[str, str]
    said: str = ""


class McpServer:
    """A server, by the command that starts it or the address where it is.

    Args:
        name: what people call it; stands in front of its tools' names, too, unless ``prefix`` does.
        command: program and arguments; spoken to over its standard input and output.
        url: streamable HTTP, in place of ``command``.
        env: variables for the process; others are passed on unless they look like secrets.
        allow_env: names of such that are passed on all the same.
        cwd: where the process runs.
        secrets: headers filled from the environment, like ``Bearer ${TOKEN}``; for ``env``, use ``allow_env``.
        environ: in place of the process's environment.
        prefix: put in front of tools' names; by default the name and ``_``.
        downstream: whose guard its calls go through; by default the name.
        kind: what its tools are, ``external`` by default: breaker first, no retry in place.
        kinds: kinds of single tools, by the server's names for them.
        trust_hints: whether ``readOnlyHint`` makes a tool a ``query`` and its absence an ``action``.
        only: the tools that are taken; all by default.
        approval: tools that a human must approve.
        timeout: the call limit; progress does not extend it.
        start: how long connecting and listing the tools may take.
        wait: how long the app's start waits for it.
        pause: the first pause before it is started again; doubled each time, up to ``pause_max``, less up to half at
            random.
    """

    def __init__(
        self,
        name: str,
        *,
        command: Sequence[str] | None = None,
        url: str | None = None,
        env: Mapping[str, str] | None = None,
        allow_env: Collection[str] = (),
        cwd: Path | None = None,
        secrets: Mapping[str, str] | None = None,
        environ: Mapping[str, str] | None = None,
        prefix: str | None = None,
        downstream: str | None = None,
        kind: Kind = "external",
        kinds: Mapping[str, Kind] | None = None,
        trust_hints: bool = False,
        only: Collection[str] | None = None,
        approval: Collection[str] = (),
        timeout: float | str = 30.0,
        start: float | str = 10.0,
        wait: float | str = 5.0,
        pause: float | str = 0.5,
        pause_max: float | str = 30.0,
        sources: Sources | None = None,
    ) -> None:
        if (command is None) == (url is None):
            raise BadInput(f"MCP server {name!r}: give a command or a url", param=f"mcp.{name}")
        if command is not None and (not command or isinstance(command, str) or not all(command)):
            raise BadInput(f"MCP server {name!r}: the command should be a list of texts", param=f"mcp.{name}.command")
        if url is not None and not re.match(r"https?://[^/\s]+", url):
            raise BadInput(f"MCP server {name!r}: the url should be an http or https URL", param=f"mcp.{name}.url")
        self.name = name
        self.downstream = downstream or name
        self.wait = seconds(wait)
        self._command = tuple(command or ())
        self._url = url
        self._env = dict(env or {})
        self._allow_env = tuple(allow_env)
        self._cwd = cwd
        self._secrets = {
            header: SecretText(text, environ=environ, where=f"mcp.{name}.secrets.{header}")
            for header, text in (secrets or {}).items()
        }
        self._prefix = f"{name}_" if prefix is None else prefix
        self._kind: Kind = kind
        self._kinds = dict(kinds or {})
        self._trust = trust_hints
        self._only = None if only is None else frozenset(only)
        self._approval = frozenset(approval)
        self._timeout = seconds(timeout)
        self._start = seconds(start)
        self._pause, self._pause_max = seconds(pause), seconds(pause_max)
        self._sources = sources or Sources()
        self._tools: dict[str, Tool] = {}
        self._skipped: dict[str, str] = {}
        self._client: Any = None
        self._lost: asyncio.Event | None = None
        self._suspect = asyncio.Event()
        self._process: Any = None
        self._ready = asyncio.Event()
        self._state: State = "starting"
        self._why = "it has not been started"
        self._said = ""
        self._starts = 0
        self._next: float | None = None
        self._calls: set[asyncio.Task[Any]] = set()

    # --- what others see ---------------------------------------------------------------------------------------

    @property
    def tools(self) -> Mapping[str, Tool]:
        """The tools it had when it was last asked, also while it is down."""
        return self._tools

    def status(self) -> McpStatus:
        """As of now."""
        left = None
        if self._next is not None:
            left = max(0.0, self._next - asyncio.get_running_loop().time())
        return McpStatus(self._state, self._why, len(self._tools), self._starts, left, dict(self._skipped), self._said)

    async def ready(self) -> None:
        """Waits until it is connected; for ever, if need be."""
        await self._ready.wait()

    # --- keeping it up -----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keeps the server up until cancelled; whatever it does, this raises nothing else."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        failed = 0
        try:
            await asyncio.to_thread(importlib.import_module, "mcp")  # seconds of work that must not stall the loop
            while True:
                began = loop.time()
                self._starts += 1
                self._state, self._next = "starting", None
                try:
                    await self._serve()
                except Exception as error:  # noqa: BLE001 - whatever a server, its process or the SDK comes up with
                    self._why = self._why_lost(error)
                except asyncio.CancelledError:
                    if task.cancelling():
                        raise
                    self._why = "the connection is lost"
                self._state = "down"
                failed = 1 if loop.time() - began > _STEADY else failed + 1
                pause = min(self._pause_max, self._pause * 2.0 ** min(failed - 1, 20))
                pause *= 1 - self._sources.rng.random() / 2
                _log.warning("MCP server %s is down: %s; next try in %.1f s", self.name, self._why, pause)
                self._next = loop.time() + pause
                await asyncio.sleep(pause)
        except ImportError:
            self._why = "the package `mcp` is not installed: pip install 'failsoft[mcp]'"
            _log.error("MCP server %s: %s", self.name, self._why)
            self._state, self._next = "down", None
        except BaseException:
            self._state, self._why, self._next = "closed", "it was closed", None
            raise
        finally:
            for call in list(self._calls):
                call.cancel()
            if self._calls:
                await asyncio.wait(list(self._calls), timeout=1.0)

    def _why_lost(self, error: BaseException) -> str:
        while isinstance(error, BaseExceptionGroup) and error.exceptions:
            error = error.exceptions[0]
        if isinstance(error, TimeoutError):
            return f"it was not ready within {self._start:g} s"
        if isinstance(error, FileNotFoundError | PermissionError | NotADirectoryError):
            return f"it cannot be started: {error.strerror}"
        if isinstance(error, FailsoftError):
            return error.message
        text = "".join(one for one in str(error) if one.isprintable())[:200]
        for secret in self._secrets.values():
            text = secret.scrubbed(text)
        return f"{type(error).__name__}: {text}" if text else type(error).__name__

    @asynccontextmanager
    async def _transport(self) -> AsyncIterator[tuple[Any, asyncio.Event, Any]]:
        if self._url is not None:
            from failsoft.tools.mcp_http import reached

            headers = {header: secret.reveal() for header, secret in self._secrets.items()}
            async with reached(self._url, headers) as transport:
                yield transport, asyncio.Event(), None
            return
        from failsoft.tools.mcp_stdio import connected

        async with connected(self._command, cwd=self._cwd, env=self._env, allow_env=self._allow_env) as (
            one,
            transport,
        ):
            try:
                yield transport, one.lost, one
            finally:
                self._said = one.said

    async def _serve(self) -> None:
        """One connection, from its beginning until it is lost."""
        from mcp import Client
        from mcp.types import Implementation, ToolListChangedNotification

        changed = asyncio.Event()

        async def heard(message: Any) -> None:
            if isinstance(message, ToolListChangedNotification):
                changed.set()

        async with self._transport() as (transport, lost, process):
            client = Client(
                transport,
                message_handler=heard,
                client_info=Implementation(name="failsoft", version="1"),
                cache=None,
            )
            try:
                async with asyncio.timeout(self._start):
                    await _unless(lost, client.__aenter__())
                # A result is not checked against the server's own schema for it: that could take for ever, on the loop.
                client.session.validate_tool_result = _unchecked  # type: ignore[method-assign]  # a stand-in
                try:
                    await self._use(client, lost, changed, process)
                except BaseException as error:
                    await _leave(client, lost, error)
                    raise
            except _Lost:
                raise DownstreamUnavailable(process.why if process is not None else "the connection is lost") from None
            except Exception:
                if process is not None and process.lost.is_set() and process.why not in ("", "it was closed"):
                    raise DownstreamUnavailable(process.why) from None
                raise

    async def _use(self, client: Any, lost: asyncio.Event, changed: asyncio.Event, process: Any) -> None:
        """Lists the tools and serves calls until the connection is lost."""
        try:
            async with asyncio.timeout(self._start):
                await _unless(lost, self._list(client))
            self._client, self._lost, self._process = client, lost, process
            self._suspect.clear()
            self._state, self._why, self._next = "ready", "", None
            self._ready.set()
            await self._watch(client, lost, changed)
        finally:
            self._client = self._lost = self._process = None
            self._ready.clear()
            if self._state == "ready":
                self._state = "down"
                self._why = process.why if process is not None else "the connection is lost"

    async def _watch(self, client: Any, lost: asyncio.Event, changed: asyncio.Event) -> None:
        """Until the connection is lost. Asks for the tools again when they have changed, and when a call broke in a way
        that leaves open whether there still is a connection.
        """
        while True:
            waits = [asyncio.ensure_future(one.wait()) for one in (lost, changed, self._suspect)]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for one in waits:
                    one.cancel()
            if lost.is_set():
                raise _Lost
            if not self._suspect.is_set():
                await asyncio.sleep(_REFRESH)
            changed.clear()
            self._suspect.clear()
            async with asyncio.timeout(self._start):
                await _unless(lost, self._list(client))

    async def _list(self, client: Any) -> None:
        found: list[Any] = []
        cursor: str | None = None
        for _ in range(PAGES):
            page = await client.list_tools(cursor=cursor)
            found.extend(page.tools)
            cursor = page.next_cursor
            if cursor is None or len(found) >= TOOLS:
                break
        tools: dict[str, Tool] = {}
        skipped: dict[str, str] = {}
        for one in found[:TOOLS]:
            if self._only is not None and one.name not in self._only:
                continue
            try:
                made = self._made(one)
                if made.spec.name in tools:
                    raise BadInput("another one has the same name")
            except BadInput as error:
                skipped[str(one.name)[:80]] = error.message
            else:
                tools[made.spec.name] = made
        if skipped:
            _log.warning("tools of MCP server %s that are not offered: %s", self.name, skipped)
        self._tools, self._skipped = tools, skipped

    def _made(self, one: Any) -> McpTool:
        name = self._prefix + re.sub(r"[^A-Za-z0-9_-]+", "_", one.name)
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]{0,63}", name):
            raise BadInput(f"{name[:80]!r} is no name for a tool")
        schema = dict(one.input_schema or {})
        if len(str(schema)) > SCHEMA_LIMIT:
            raise BadInput("its schema is too large")
        if schema.get("type") != "object":
            raise BadInput("its schema is none of an object")
        schema.setdefault("properties", {})
        hints = one.annotations
        kind = self._kind
        if self._trust:
            kind = "query" if hints is not None and hints.read_only_hint else "action"
        kind = self._kinds.get(one.name, kind)
        text = "".join(c for c in (one.description or one.title or "") if c.isprintable() or c in "\n\t").strip()
        spec = ToolSpec(
            name=name,
            description=text if len(text) <= _DESCRIPTION else text[: _DESCRIPTION - 1] + "…",
            kind=kind,
            downstream=self.downstream,
            timeout=self._timeout,
            approval=one.name in self._approval,
            parameters=schema,
        )
        return McpTool(self, one.name, spec)

    # --- calls -------------------------------------------------------------------------------------------------

    async def ask(self, tool: str, spec: ToolSpec, arguments: Mapping[str, Any], context: ToolContext) -> Any:
        """One attempt at a call. Lets go of it at once when cancelled, and tells the server so."""
        client, lost, process = self._client, self._lost, self._process
        if client is None or lost is None:
            status = self.status()
            raise DownstreamUnavailable(
                f"MCP server {self.name!r} is {status.state}: {status.why or 'connecting'}",
                downstream=self.downstream,
                retry_after=status.next_try,
            )

        loop = asyncio.get_running_loop()
        told = -math.inf

        async def report(progress: float, total: float | None, message: str | None) -> None:
            nonlocal told
            if loop.time() - told < _TELL:  # whatever a server sends, a run hears of it now and then
                return
            told = loop.time()
            fraction = progress / total if total else progress if 0 <= progress <= 1 else None
            context.progress(None if fraction is None else min(1.0, max(0.0, fraction)), (message or "")[:500])

        call = asyncio.create_task(
            client.call_tool(tool, dict(arguments), progress_callback=report), name=f"mcp {self.name}.{tool}"
        )
        self._calls.add(call)
        call.add_done_callback(self._ended)
        losing = asyncio.ensure_future(lost.wait())
        try:
            await asyncio.wait([call, losing], return_when=asyncio.FIRST_COMPLETED)
        finally:
            losing.cancel()
            if not call.done():
                call.cancel()  # the SDK then tells the server; that may take a moment, for which nobody waits
        if not call.done():
            raise self._lost_in_mid_call(process)
        try:
            result = call.result()
        except asyncio.CancelledError:
            raise self._lost_in_mid_call(process) from None
        except Exception as error:  # noqa: BLE001 - read for what it is
            mapped = read_error(error, spec, self._why_lost(error))
            if isinstance(mapped, DownstreamUnavailable):
                self._suspect.set()
                if process is None or process.lost.is_set():
                    raise self._lost_in_mid_call(process, mapped.message) from None
            raise mapped from None
        return await checked_result(read_result(result, spec), spec)

    def _lost_in_mid_call(self, process: Any, why: str = "") -> DownstreamUnavailable:
        why = process.why if process is not None and process.why else why or self._why
        text = f"MCP server {self.name!r} was lost in mid-call" + (f": {why}" if why else "")
        return DownstreamUnavailable(text, downstream=self.downstream)

    def _ended(self, call: asyncio.Task[Any]) -> None:
        self._calls.discard(call)
        if not call.cancelled():
            call.exception()  # looked at, so that it is not reported as never retrieved

    def __repr__(self) -> str:
        return f"<McpServer {self.name} {self._state} tools={len(self._tools)}>"


async def _unchecked(name: str, result: Any) -> None:
    """Lets every result pass."""


async def _leave(client: Any, lost: asyncio.Event, error: BaseException) -> None:
    """Leaves the SDK's client because of `error`, within a bound. What its own tasks raised is raised from here, unless
    we are being cancelled ourselves: a failed task of its own cancels the one that we are in, too.
    """
    task = asyncio.current_task()
    assert task is not None
    lost.set()
    try:
        async with asyncio.timeout(_LEAVE):
            await client.__aexit__(type(error), error, error.__traceback__)
    except Exception:
        if task.cancelling():
            raise asyncio.CancelledError from None
        raise


class _Lost(Exception):
    """The connection is lost."""


async def _unless(lost: asyncio.Event, work: Any) -> None:
    """Awaits `work` in place, and is interrupted when the connection is lost meanwhile."""
    task = asyncio.current_task()
    assert task is not None
    interrupted = False

    async def watch() -> None:
        nonlocal interrupted
        await lost.wait()
        interrupted = True
        task.cancel()

    watching = asyncio.ensure_future(watch())
    try:
        await work
    except asyncio.CancelledError:
        if interrupted and task.uncancel() == 0:
            raise _Lost from None
        raise
    finally:
        watching.cancel()
    if interrupted:
        task.uncancel()
        raise _Lost


class McpTool:
    """A tool of a server."""

    __slots__ = ("_schema", "_server", "_tool", "spec")

    def __init__(self, server: McpServer, tool: str, spec: ToolSpec) -> None:
        self.spec = spec
        self._server = server
        self._tool = tool
        self._schema = ArgumentSchema(spec.name, spec.parameters)

    def check(self, arguments: Mapping[str, Any], *, unknown: Collection[str] = ()) -> None:
        """See :class:`~failsoft.tools.registry.Tool`."""
        self._schema.check(arguments, unknown)

    async def call(self, guard: Guard, arguments: Mapping[str, Any], context: ToolContext) -> Any:
        """See :class:`~failsoft.tools.registry.Tool`."""
        self._schema.check(arguments)
        spec = self.spec
        key = None if spec.kind == "query" else context.idempotency_key
        return await guard.call(
            self._attempt, arguments, context, kind=spec.kind, timeout=spec.timeout, idempotency_key=key
        )

    async def _attempt(self, arguments: Mapping[str, Any], context: ToolContext) -> Any:
        return await self._server.ask(self._tool, self.spec, arguments, context.attempt())

    def __repr__(self) -> str:
        return f"<McpTool {self.spec.name} of {self._server.name}>"
