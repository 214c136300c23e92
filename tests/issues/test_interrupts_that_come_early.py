"""A query cancelled just before it began ran for ever: the database forgets an interrupt that comes too early."""

import asyncio
import threading

import pytest
from tests.tools import databases

from failsoft.base.errors import DownstreamError
from failsoft.kernel.guard import Kernel
from failsoft.tools.registry import ToolContext
from failsoft.tools.sql import sql_tool

pytestmark = pytest.mark.realtime

FILES = {"sqlite": databases.sqlite_file, "duckdb": databases.duckdb_file}


@pytest.fixture(params=["sqlite", "duckdb"])
def kind(request):
    return request.param


@pytest.fixture
def address(kind, tmp_path):
    return f"{kind}:///{FILES[kind](tmp_path)}"


async def test_a_query_cancelled_before_it_begins_ends(kind, address):
    tool = sql_tool("ask", address)
    kernel = Kernel()
    context = ToolContext()
    context.cancelled.set()
    running = asyncio.to_thread(tool._database.run, kernel.guard("ask"), databases.ENDLESS[kind], {}, context)
    with pytest.raises(DownstreamError, match="interrupted"):
        await asyncio.wait_for(running, 10)
    await kernel.aclose()


def interrupting_threads():
    return [thread for thread in threading.enumerate() if thread.name == "failsoft-interrupt"]


def test_what_is_interrupted_is_interrupted_until_it_ends_and_never_after():
    context = ToolContext()
    times: list[str] = []
    thrice = threading.Event()

    def interrupt() -> None:
        times.append(threading.current_thread().name)
        if len(times) == 3:
            thrice.set()

    with context.interrupting(interrupt):
        assert times == []
        context.cancelled.set()
        assert thrice.wait(10)
    seen = len(times)
    for thread in interrupting_threads():
        thread.join(10)
    assert interrupting_threads() == []
    assert len(times) == seen
    assert times[0] == threading.current_thread().name != times[1]


def test_one_that_raises_is_not_tried_again(caplog):
    context = ToolContext()
    with context.interrupting(lambda: 1 / 0):
        context.cancelled.set()
        assert interrupting_threads() == []
    assert caplog.text.count("ZeroDivisionError: ") == 1


def test_nothing_is_interrupted_when_nobody_cancels():
    context = ToolContext()
    times: list[int] = []
    with context.interrupting(lambda: times.append(1)):
        pass
    context.cancelled.set()
    assert times == []
