"""Models that follow a script, and apps with an agent that is a loop."""

import asyncio
import json
from typing import Any

from failsoft.app import App
from failsoft.base.messages import ToolCall
from failsoft.runs.agents import Agent
from failsoft.runs.loop import Loop
from failsoft.runs.loop_model import Reply
from failsoft.runs.turns import LoopLimits

__all__ = ["Script", "agent", "app", "call", "calls", "last_results"]


def call(name: str, id: str | None = None, **arguments: Any) -> ToolCall:
    return ToolCall(id or f"c_{name}", name, json.dumps(arguments))


def calls(*wanted: ToolCall, text: str = "", finish: str = "tool_calls", **more: Any) -> Reply:
    """A reply that asks for these calls, each under an id of its own."""
    made = tuple(ToolCall(f"{one.id}_{i}", one.name, one.arguments) for i, one in enumerate(wanted))
    return Reply(text, made, finish, **more)


class Script:
    """A model that says its lines: text, a ``Reply``, an error, seconds to wait before the next; the last for ever."""

    name = "script"

    def __init__(self, *lines: Any, seconds: float = 0.0) -> None:
        self.lines = list(lines)
        self.seconds = seconds
        self.asked: list[Any] = []

    async def reply(self, request: Any) -> Reply:
        self.asked.append(request._replace(messages=[dict(m) for m in request.messages]))
        await asyncio.sleep(self.seconds)
        line = self._next(request)
        while isinstance(line, float):
            await asyncio.sleep(line)
            line = self._next(request)
        if isinstance(line, BaseException):
            raise line
        if isinstance(line, str):
            line = Reply(line)
        assert isinstance(line, Reply)
        for piece in [line.text[i : i + 7] for i in range(0, len(line.text), 7)]:
            request.said(piece)
        if line.calls:
            request.called()
        return line

    def _next(self, request: Any) -> Any:
        line = self.lines[0] if len(self.lines) == 1 else self.lines.pop(0)
        return line(request) if callable(line) else line

    @property
    def offered(self) -> list[list[str]]:
        """The names of the tools that each turn was offered."""
        return [[one["function"]["name"] for one in request.tools] for request in self.asked]

    @property
    def notes(self) -> list[str]:
        """The last message that each turn was given."""
        return [str(request.messages[-1]["content"]) for request in self.asked]


def last_results(request: Any) -> list[str]:
    """The tool results at the end of a turn's messages."""
    found: list[str] = []
    for message in reversed(request.messages):
        if message["role"] != "tool":
            if found or message["role"] != "user":
                break
            continue
        found.append(message["content"])
    return found[::-1]


def agent(model: Any, *tools: Any, name: str = "other", **options: Any) -> Agent:
    limits = {n: options.pop(n) for n in LoopLimits.__dataclass_fields__ if n in options}
    loop = {n: options.pop(n) for n in Loop.__dataclass_fields__ if n in options}
    return Agent(name, "For tests.", tools, loop=Loop(model, limits=LoopLimits(**limits), **loop), **options)


def app(model: Any, *tools: Any, others: Any = (), **options: Any) -> App:
    mine = {n: options.pop(n) for n in ("store", "golden") if n in options}
    mine.setdefault("store", "off")
    return App(agents=[agent(model, *tools, name="main", **options), *others], settings=_settings(), **mine)


def _settings() -> Any:
    from failsoft.config import Settings

    return Settings(agent="main")
