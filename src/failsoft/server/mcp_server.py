"""Failsoft as an MCP server: its agents as tools; served at ``/mcp`` or over standard input and output.

A call is a run like any other: one deadline, a degraded answer rather than none, cancelled when the client cancels or
leaves. Progress goes to clients that ask for it.
"""

from __future__ import annotations

import asyncio
import importlib
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from failsoft import __version__
from failsoft.app import App
from failsoft.base.errors import FailsoftError, UnknownTool
from failsoft.base.events import Event
from failsoft.runs.result import RunRequest, RunResult
from failsoft.runs.state import RunState

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

__all__ = ["mcp_server", "serve_stdio"]

_EVERY: Final = 0.2
"""Seconds between two reports of progress at least."""


def tool_name(agent: str) -> str:
    """An agent's name as clients accept it for a tool."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", agent)


def mcp_server(app: App, tenant: Callable[[Any], str | None] = lambda _: None) -> Server[Any]:
    """The server. ``tenant(request)`` tells whose an HTTP request is."""
    from mcp.server.lowlevel import Server
    from mcp.types import CallToolResult, ListToolsResult, TextContent, Tool, ToolAnnotations

    def agents() -> dict[str, str]:
        return {tool_name(name): name for name in app.agents.names}

    async def list_tools(context: Any, params: Any) -> ListToolsResult:
        schema = {
            "type": "object",
            "properties": {
                "input": {"type": "string", "description": "The question or request, in natural language."},
                "budget_ms": {"type": "number", "description": "How long the caller will wait.", "exclusiveMinimum": 0},
                "mode": {"enum": ["fast", "deep"], "description": "Short, or thorough."},
                "session_id": {"type": "string", "description": "The conversation that it belongs to."},
            },
            "required": ["input"],
            "additionalProperties": False,
        }
        tools = [
            Tool(
                name=name,
                description=app.agents.get(agent).description or f"Asks the agent {agent}.",
                input_schema=schema,
                annotations=ToolAnnotations(read_only_hint=_reads_only(app, agent)),
            )
            for name, agent in agents().items()
        ]
        return ListToolsResult(tools=tools)

    async def call_tool(context: Any, params: Any) -> CallToolResult:
        try:
            agent = agents().get(params.name)
            if agent is None:
                raise UnknownTool(f"there is no tool {params.name[:80]!r}; there are: {', '.join(agents())}")
            given = dict(params.arguments or {})
            unknown = set(given) - {"input", "budget_ms", "mode", "session_id"}
            if unknown:
                raise UnknownTool(f"tool {params.name!r} takes no argument {min(unknown)[:80]!r}")
            request = RunRequest(
                input=given.get("input", ""),
                agent=agent,
                budget_ms=given.get("budget_ms"),
                mode=given.get("mode"),
                session_id=given.get("session_id"),
                tenant=tenant(context.request),
            )
            result = await _answered(app, request, context.session.report_progress)
        except FailsoftError as error:
            return CallToolResult(content=[TextContent(text=f"{error.code}: {error.message}")], is_error=True)
        text, data, failed = _told(result)
        return CallToolResult(content=[TextContent(text=text)], is_error=failed, _meta={"failsoft": data})

    return Server("failsoft", version=__version__, on_list_tools=list_tools, on_call_tool=call_tool)


def _reads_only(app: App, agent: str) -> bool:
    return all(spec.kind != "action" for spec in app.agents.get(agent).tools.specs)


def _told(result: RunResult) -> tuple[str, dict[str, Any], bool]:
    """The text, the data beside it, and whether there is no answer."""
    body = result.to_dict()
    wanted: tuple[str, ...] = ("run_id", "status", "shortfalls")
    data: dict[str, Any] = {name: body[name] for name in wanted if name in body}
    if result.status in (RunState.COMPLETED, RunState.DEGRADED):
        return result.answer or "", data, False
    error = result.error
    text = f"{error.code}: {error.message}" if error is not None else f"the run is {result.status}"
    if result.answer:  # of a run that has expired: what there is
        text = f"{text}\n\n{result.answer}"
    return text, data, True


async def _answered(app: App, request: RunRequest, report: Callable[..., Awaitable[None]]) -> RunResult:
    """Runs the request; reports its progress to the client, one report at a time, the latest only."""
    handle = app.start(request)
    latest: list[tuple[float, str]] = []
    news = asyncio.Event()

    def listen(event: Event) -> None:
        if event.run == handle.run_id and event.kind == "run.eta" and isinstance(event.data, Mapping):
            running = ", ".join(map(str, event.data.get("running", ())))
            text = f"{event.data.get('finished')} of {event.data.get('total')} done" + (
                f"; {running}" if running else ""
            )
            latest[:] = [(float(event.data.get("done", 0.0)), text[:200])]
            news.set()

    async def tell() -> None:
        sent = -1.0
        while True:
            await news.wait()
            news.clear()
            fraction, text = latest[0]
            if fraction > sent:  # the protocol wants it to grow
                sent = fraction
                await report(fraction, 1.0, text)
            await asyncio.sleep(_EVERY)

    remove = app.bus.add(listen)
    telling = asyncio.create_task(tell())
    try:
        return await handle.result()
    except asyncio.CancelledError:
        handle.cancel()
        raise
    finally:
        remove()
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)


async def serve_stdio(app: App) -> None:
    """Serves one client over standard input and output until it leaves; nothing else may write there."""
    await asyncio.to_thread(importlib.import_module, "mcp.server.stdio")
    from mcp.server.stdio import stdio_server

    server = mcp_server(app)
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())
