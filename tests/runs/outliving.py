"""Apps that die and come back, over one store, in virtual time."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from tests.runs.worlds import agent

from failsoft.app import App
from failsoft.base.clock import Sources
from failsoft.base.errors import StoreError
from failsoft.runs.durable import DurableLimits
from failsoft.runs.limits import RunLimits
from failsoft.runs.result import RunRequest, RunResult
from failsoft.stores.memory import MemoryStore

NOW = 1_700_000_000.0


class LastingStore(MemoryStore):
    """A memory store that says it outlives the process, as a file does for those who share it."""

    @property
    def durable(self) -> bool:
        return True


class Line:
    """One process's connection to a store: cut, nothing of the process reaches the store any more."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.dead = False
        self.hangs = False
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        inner = getattr(self.store, name)
        if not asyncio.iscoroutinefunction(inner):
            return inner

        async def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            if self.hangs:
                await asyncio.get_running_loop().create_future()
            if self.dead:
                raise StoreError("the line is cut")
            value = await inner(*args, **kwargs)
            if self.dead:
                raise StoreError("the line is cut")
            return value

        return call


def wall() -> float:
    return NOW + asyncio.get_running_loop().time()


class Process:
    """An app over a line to a store that outlives it."""

    def __init__(self, app: App, line: Line) -> None:
        self.app = app
        self.line = line

    def start(self, question: str = "q", **options: Any):
        return self.app.start(RunRequest(question, **options))

    async def result(self, run_id: str) -> RunResult:
        """The result of a run that this process drives, or has taken over in the end."""
        while (handle := self.app.run(run_id)) is None:  # noqa: ASYNC110 - whenever it is taken over
            await asyncio.sleep(0.1)
        return await handle.result()


@contextlib.asynccontextmanager
async def process(store: Any, *, what: Any = None, dies: bool = False, **options: Any) -> AsyncIterator[Process]:
    """A process until the end of the block, where it ends in order, or `dies`: nothing more of it reaches the store."""
    line = Line(store)
    mine = {name: options.pop(name) for name in ("tools", "answer", "width", "planners", "budget") if name in options}
    app = App(
        agents=[agent(what, **mine)],
        store=line,
        sources=Sources(wall=wall),
        limits=options.pop("limits", RunLimits()),
        durable=options.pop("durable", DurableLimits()),
        **options,
    )
    async with app:
        yield Process(app, line)
        line.dead = dies
