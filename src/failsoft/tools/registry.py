"""What a tool is to the platform, what a tool gets from it, and which tools there are.

A :class:`Tool` knows its :class:`ToolSpec`, checks arguments, and makes one guarded call. Everything around that call
(retry, breaker, bulkhead, alternates, stale results, fallback) belongs to the kernel and to the run's ladder.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, runtime_checkable

from failsoft.base.errors import BadInput, MalformedResult, UnknownTool
from failsoft.base.outcomes import Kind
from failsoft.kernel.guard import Guard
from failsoft.kernel.scope import current_scope

__all__ = [
    "Alternate",
    "Cancelled",
    "Default",
    "Isolation",
    "ResultTooLarge",
    "ResultUnserialisable",
    "Tool",
    "ToolContext",
    "ToolRegistry",
    "ToolSource",
    "ToolSpec",
    "seconds",
]

_log = logging.getLogger(__name__)

RESULT_LIMIT: Final = 10_000_000
"""Bytes of JSON that a tool's result may have, by default."""


class ResultTooLarge(MalformedResult):
    """A tool returned more than its ``result_limit`` bytes."""

    code = "result_too_large"
    retryable = False


class ResultUnserialisable(MalformedResult):
    """A tool returned something that is not plain data; the message names its type."""

    code = "result_unserialisable"
    retryable = False


_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds(value: float | str) -> float:
    """A duration in seconds from a number of seconds or a text like ``500ms``, ``3s``, ``5m``, ``1h``, ``2d``."""
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?\s*", value)
        if match is None:
            raise BadInput(f"{value!r} is no duration: write 500ms, 3s, 5m, 1h or 2d", param="duration")
        return float(match[1]) * _UNITS[match[2] or "s"]
    if isinstance(value, bool) or not math.isfinite(value) or value < 0:
        raise BadInput(f"{value!r} is no duration", param="duration")
    return float(value)


@dataclass(frozen=True, slots=True)
class Alternate:
    """Another tool of the registry that takes the same arguments; ``equivalent`` when its result is as good."""

    tool: str
    equivalent: bool = False


@dataclass(frozen=True, slots=True)
class Default:
    """What is served when nothing else could be: a value, or what a quick synchronous rule makes of the arguments."""

    value: Any = None
    rule: Callable[[Mapping[str, Any]], Any] | None = None
    equivalent: bool = False


@dataclass(frozen=True, slots=True)
class Isolation:
    """A plain function runs in worker processes of its downstream, which are killed at the limit with all they started.

    ``workers`` processes at most, started when needed and kept warm; the tools of one downstream share them when they
    have the same settings. ``memory_limit`` is bytes of address space for each; ``allow_env`` names variables that
    workers get although they look like secrets. See :class:`~failsoft.kernel.processes.ProcessPool`.
    """

    workers: int = 2
    memory_limit: int | None = None
    allow_env: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as planners, models, the guard and the console see it.

    ``kind`` says what may be done when it fails: ``query`` may be repeated, ``action`` changes something and never
    retries by itself, ``external`` goes breaker first without a retry in place. ``downstream`` names the guard
    (bulkhead, breaker) that its calls go through. ``timeout`` is the call limit in seconds, None for the downstream's
    own. ``stale_for`` is the age in seconds up to which an earlier result may be served instead. ``approval`` asks a
    person before each call, or before those whose arguments a quick synchronous rule says yes to. ``idempotent`` says
    of an action that its downstream does it once for one key, however often it is asked. ``parameters`` is the JSON
    schema of the arguments. ``result_limit`` is in bytes of JSON.
    ``usual`` hints at the seconds that a call takes, for plans made before any was seen; ``cost`` at what one costs,
    in whatever unit the tools of an agent share.
    """

    name: str
    description: str = ""
    kind: Kind = "query"
    downstream: str = ""
    timeout: float | None = None
    alternates: tuple[Alternate, ...] = ()
    stale_for: float | None = None
    fallback: Default | None = None
    approval: bool | Callable[[Mapping[str, Any]], bool] = False
    idempotent: bool = False
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})
    result_limit: int = RESULT_LIMIT
    blocking: bool = False
    """Whether it runs in a thread, which can be abandoned at its limit but not stopped."""
    isolation: Isolation | None = None
    usual: float | None = None
    cost: float | None = None

    def asks(self, arguments: Mapping[str, Any]) -> bool:
        """Whether a person has to be asked before a call with these arguments; a rule that raises says yes."""
        if isinstance(self.approval, bool):
            return self.approval
        try:
            return bool(self.approval(arguments))
        except Exception:  # noqa: BLE001 - who cannot tell asks
            _log.exception("the approval rule of tool %s raised", self.name)
            return True

    def to_openai(self) -> dict[str, Any]:
        """The OpenAI wire format of a tool."""
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": dict(self.parameters)},
        }


@runtime_checkable
class Tool(Protocol):
    """Anything that a task can call: a Python function, an HTTP service, a SQL connection, a tool of an MCP server."""

    @property
    def spec(self) -> ToolSpec:
        """What it is."""
        ...

    def check(self, arguments: Mapping[str, Any], *, unknown: Collection[str] = ()) -> None:
        """Raises :class:`~failsoft.base.errors.BadInput` naming the argument (``param``) that does not fit.

        Arguments named in ``unknown`` are present but their values are not known yet.
        """
        ...

    async def call(self, guard: Guard, arguments: Mapping[str, Any], context: ToolContext) -> Any:
        """Checks the arguments and makes one guarded call of the tool; returns its result or raises a typed error."""
        ...


_INTERRUPT_EVERY: Final = 0.05
"""Seconds between the calls of :meth:`ToolContext.interrupting`."""
_state = threading.Lock()
"""Guards the few writes of all :class:`Cancelled`; held for nanoseconds."""


class Cancelled:
    """Whether nobody waits for a call's result any more; readable from any thread, like a ``threading.Event``."""

    __slots__ = ("_callbacks", "_event", "_set")

    def __init__(self) -> None:
        self._set = False
        self._event: threading.Event | None = None
        self._callbacks: list[Callable[[], object]] = []

    def is_set(self) -> bool:
        """True once the call was cancelled or its limit passed."""
        return self._set

    __bool__ = is_set

    def wait(self, timeout: float | None = None) -> bool:
        """Blocks the calling thread until set, or `timeout` seconds long; returns whether it is set."""
        with _state:
            if self._set:
                return True
            if self._event is None:
                self._event = threading.Event()
            event = self._event
        return event.wait(timeout)

    def on_cancel(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Calls `callback` once when set, at once if it is; returns a function that takes it back."""
        with _state:
            if not self._set:
                self._callbacks.append(callback)

                def remove() -> None:
                    with _state:
                        if callback in self._callbacks:
                            self._callbacks.remove(callback)

                return remove
        _quietly(callback)
        return lambda: None

    def set(self) -> None:
        """Sets it and runs the callbacks, once."""
        with _state:
            if self._set:
                return
            self._set = True
            event, callbacks = self._event, self._callbacks
            self._callbacks = []
        if event is not None:
            event.set()
        for callback in callbacks:
            _quietly(callback)

    def __repr__(self) -> str:
        return f"<Cancelled {'set' if self._set else 'not set'}>"


def _quietly(callback: Callable[[], object]) -> bool:
    """Runs it; returns whether it did not raise."""
    try:
        callback()
    except Exception:  # noqa: BLE001 - a tool's callback must not break its canceller
        _log.exception("a tool's on_cancel callback raised")
        return False
    return True


Report = Callable[[float | None, str], None]


class ToolContext:
    """What a tool gets to know of the call it serves: take it by annotating a parameter with it.

    Everything here may be used from the tool's thread as well as from the loop. ``idempotency_key`` is the same for all
    attempts at the same task of the same run, also after a restart: hand it to whatever must not happen twice.
    """

    __slots__ = ("_cancelled", "_clock", "_deadline", "_report", "idempotency_key", "run", "task", "tenant")

    def __init__(
        self,
        *,
        run: str | None = None,
        task: str | None = None,
        tenant: str | None = None,
        idempotency_key: str | None = None,
        deadline: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
        report: Report | None = None,
    ) -> None:
        self.run = run
        self.task = task
        self.tenant = tenant
        self.idempotency_key = idempotency_key
        self._cancelled: Cancelled | None = None
        self._deadline = deadline
        self._clock = clock
        self._report = report

    @property
    def cancelled(self) -> Cancelled:
        """Whether nobody waits for the result any more; made for the first who asks, for most tools never do."""
        found = self._cancelled
        if found is None:
            with _state:
                found = self._cancelled = self._cancelled or Cancelled()
        return found

    @classmethod
    def current(cls, *, idempotency_key: str | None = None, report: Report | None = None) -> ToolContext:
        """A context for the running task's scope."""
        scope = current_scope()
        return cls(
            run=scope.run,
            task=scope.task,
            tenant=scope.tenant,
            idempotency_key=idempotency_key,
            deadline=scope.deadline,
            clock=asyncio.get_running_loop().time,
            report=report,
        )

    def attempt(self) -> ToolContext:
        """The context of one attempt: its own ``cancelled`` and the attempt's deadline, all else the same."""
        return ToolContext(
            run=self.run,
            task=self.task,
            tenant=self.tenant,
            idempotency_key=self.idempotency_key,
            deadline=min(self._deadline, current_scope().deadline),
            clock=self._clock,
            report=self._report,
        )

    def remaining(self) -> float:
        """Seconds until nobody waits for the result any more, never negative; ``inf`` without a deadline."""
        return max(0.0, self._deadline - self._clock())

    def on_cancel(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Has `callback` run once when the call is cancelled or its limit passes, for example to interrupt a database.

        It runs in the canceller's thread, must be quick and must not block; what it raises is logged. Returns a
        function that takes it back.
        """
        return self.cancelled.on_cancel(callback)

    @contextlib.contextmanager
    def interrupting(self, interrupt: Callable[[], object]) -> Iterator[None]:
        """While the block runs, has `interrupt` called when the call is cancelled, and again until the block ends.

        For what must be told to stop, like a query in a database: one that comes just before the query begins is
        forgotten by the database (DuckDB, SQLite), so one is not enough. It runs in the canceller's thread and then in
        one of its own, never after the block, and not again once it has raised, which is logged.
        """
        ended = threading.Event()
        turn = threading.Lock()

        def once() -> bool:
            with turn:
                return not ended.is_set() and _quietly(interrupt)

        def again() -> None:
            while not ended.wait(_INTERRUPT_EVERY) and once():
                pass

        def start() -> None:
            if once():
                threading.Thread(target=again, name="failsoft-interrupt", daemon=True).start()

        remove = self.cancelled.on_cancel(start)
        try:
            yield
        finally:
            remove()
            with turn:
                ended.set()

    def progress(self, fraction: float | None = None, text: str = "") -> None:
        """Reports how far the tool is (0 to 1, None when unknown) and what it does, for whoever watches the run."""
        if self._report is not None and not self.cancelled.is_set():
            self._report(fraction, text)

    def __repr__(self) -> str:
        return f"<ToolContext run={self.run} task={self.task} remaining={self.remaining():.3f}>"


@runtime_checkable
class ToolSource(Protocol):
    """Something that comes with tools and may be away for a while: a tool server. The app runs it while it runs."""

    @property
    def name(self) -> str:
        """What people call it."""
        ...

    @property
    def downstream(self) -> str:
        """The guard of all its tools."""
        ...

    @property
    def wait(self) -> float:
        """Seconds that the app's start waits for it at most."""
        ...

    @property
    def tools(self) -> Mapping[str, Tool]:
        """Its tools by name, as it was when it was last seen."""
        ...

    async def run(self) -> None:
        """Keeps it up until cancelled; raises nothing else."""
        ...

    async def ready(self) -> None:
        """Waits until it can be used."""
        ...


class ToolRegistry:
    """The tools of an agent, by name, in the order they were added; those of ``sources`` come after them, as they come.

    A tool that was added hides one of the same name that a source brings; so does an earlier source a later one's.
    """

    __slots__ = ("_tools", "sources")

    def __init__(self, tools: Iterable[Tool] = (), sources: Iterable[ToolSource] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        self.sources: tuple[ToolSource, ...] = tuple(sources)
        for tool in tools:
            self.add(tool)

    def _all(self) -> Mapping[str, Tool]:
        if not self.sources:
            return self._tools
        found: dict[str, Tool] = dict(self._tools)
        for source in self.sources:
            for name, tool in source.tools.items():
                found.setdefault(name, tool)
        return found

    def add(self, tool: Tool) -> None:
        """Adds a tool; raises :class:`~failsoft.base.errors.BadInput` when the name is taken or it is not a tool."""
        if not isinstance(tool, Tool):
            raise BadInput(f"{tool!r} is not a tool: decorate the function with @tool", param="tools")
        name = tool.spec.name
        if name in self._tools:
            raise BadInput(f"two tools are called {name!r}", param="tools")
        self._tools[name] = tool

    def get(self, name: str) -> Tool:
        """The tool of that name; raises :class:`~failsoft.base.errors.UnknownTool`, which names those there are."""
        found = self._tools.get(name)
        if found is not None:
            return found
        there = self._all()
        try:
            return there[name]
        except (KeyError, TypeError):
            known = ", ".join(there) or "none"
            raise UnknownTool(
                f"there is no tool {str(name)[:80]!r}; there are: {known}",
                param="tool",
                details={"tools": list(there)},
            ) from None

    @property
    def own(self) -> tuple[Tool, ...]:
        """The tools that were added, without those of sources."""
        return tuple(self._tools.values())

    @property
    def names(self) -> tuple[str, ...]:
        """The names, in order."""
        return tuple(self._all())

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The specs, in order."""
        return tuple(tool.spec for tool in self._all().values())

    def without(self, names: Collection[str]) -> ToolRegistry:
        """A registry that lacks the tools of those names: for those whose breaker is open."""
        left = ToolRegistry()
        left._tools = {name: tool for name, tool in self._all().items() if name not in names}  # they were checked
        return left

    def check(self) -> None:
        """Raises :class:`~failsoft.base.errors.BadInput` when an alternate names a tool that is not here, or itself.

        What a source may bring is not known yet.
        """
        for tool in self._tools.values():
            for alternate in tool.spec.alternates:
                unknown = alternate.tool not in self._tools and not self.sources
                if unknown or alternate.tool == tool.spec.name:
                    raise BadInput(
                        f"tool {tool.spec.name!r} has the alternate {alternate.tool!r}, which is no other tool here; "
                        f"there are: {', '.join(self._tools)}",
                        param=f"tools.{tool.spec.name}.alternates",
                    )

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._all().values())

    def __len__(self) -> int:
        return len(self._all())

    def __contains__(self, name: object) -> bool:
        return name in self._all()

    def __repr__(self) -> str:
        return f"<ToolRegistry {', '.join(self._all())}>"
