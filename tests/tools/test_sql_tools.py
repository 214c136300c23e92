"""SQL tools on real databases: what they give, that they only read, and that they stop when they are told to."""

import asyncio
import time

import pytest
from tests.services import missing
from tests.tools import databases

from failsoft.base.errors import (
    BadInput,
    CallTimeout,
    DownstreamError,
    DownstreamRejected,
    DownstreamUnavailable,
    FailsoftError,
    ToolFailed,
)
from failsoft.kernel.guard import Kernel
from failsoft.testing.contracts import check_tool
from failsoft.tools.registry import ToolContext
from failsoft.tools.sql import sql_tool

pytestmark = pytest.mark.realtime

KINDS = ["sqlite", "duckdb", "postgres"]


@pytest.fixture(scope="module")
def addresses(tmp_path_factory):
    """The address of each database; Postgres is started by the first test that asks for it."""
    folder = tmp_path_factory.mktemp("sql")
    found = {
        "sqlite": f"sqlite:///{databases.sqlite_file(folder)}",
        "duckdb": f"duckdb:///{databases.duckdb_file(folder)}",
    }
    server = None

    def address(kind, user="reader"):
        nonlocal server
        if kind != "postgres":
            return found[kind]
        if server is None:
            if databases.postgres_binaries() is None:
                missing("a Postgres server (apt-get install postgresql)")
            server = databases.postgres_server()
            found["postgres"] = server.__enter__()
        return found["postgres"].format(user=user)

    yield address
    if server is not None:
        server.__exit__(None, None, None)


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def postgres(addresses):
    """A Postgres address for a user; the server is up."""
    addresses("postgres")
    return lambda user: addresses("postgres", user)


@pytest.fixture
def database(kind, addresses):
    return addresses(kind)


async def call(tool, kernel=None, **arguments):
    own = kernel or Kernel()
    try:
        return await tool.call(own.guard(tool.spec.downstream), arguments, ToolContext.current())
    finally:
        if kernel is None:
            await own.aclose()


async def test_a_select_is_answered(database):
    tool = sql_tool("ask", database)
    found = await call(tool, query="SELECT region, sum(amount) AS total, count(*) n FROM orders GROUP BY 1 ORDER BY 1;")
    assert found == {
        "columns": ["region", "total", "n"],
        "rows": [["north", 10.5, 2], ["south", 20.0, 1]],
        "truncated": False,
    }
    assert await call(tool, query="SELECT id, id, amount FROM orders WHERE id = 3 -- twice") == {
        "columns": ["id", "id", "amount"],
        "rows": [[3, 3, None]],
        "truncated": False,
    }
    assert (await call(tool, query="SELECT 1 WHERE false"))["rows"] == []


async def test_the_contract_of_tools(database):
    await check_tool(sql_tool("ask", database), {"query": "SELECT 1 AS one"}, {"query": "DROP TABLE orders"})


async def test_a_query_of_its_own_takes_parameters(database):
    tool = sql_tool(
        "by_region",
        database,
        query="SELECT id FROM orders WHERE region = :region AND id >= :least AND region = :region ORDER BY id",
        parameters={"region": {"type": "string"}, "least": {"type": "integer", "default": 1}},
    )
    assert (await call(tool, region="north"))["rows"] == [[1], [3]]
    assert (await call(tool, region="north", least=2))["rows"] == [[3]]
    assert (await call(tool, region="' OR 1=1 --"))["rows"] == []
    for wrong in ({}, {"region": 5}, {"region": "x", "query": "SELECT 1"}):
        with pytest.raises(BadInput):
            await call(tool, **wrong)


async def test_rows_and_bytes_are_bounded_and_it_is_said(database):
    tool = sql_tool("ask", database, row_limit=2)
    found = await call(tool, query="SELECT id FROM orders ORDER BY id")
    assert (found["rows"], found["truncated"]) == ([[1], [2]], True)
    tool = sql_tool("ask", database, byte_limit=1000)
    text, big = "repeat('x', 300)", "repeat('x', 900000)"
    if database.startswith("sqlite"):
        text, big = "hex(zeroblob(150))", "hex(zeroblob(450000))"
    found = await call(tool, query=f"SELECT {text} AS x FROM orders AS a, orders AS b")
    assert (len(found["rows"]), found["truncated"]) == (3, True)
    big = f"SELECT {big} AS x"
    with pytest.raises(ToolFailed, match="a row has"):
        await call(tool, query=big)


async def test_a_huge_value_never_gets_here(kind, database):
    tool = sql_tool("ask", database, memory="64MB", timeout=8)
    text = {
        "sqlite": "SELECT zeroblob(900000000) AS x",
        "duckdb": "SELECT repeat('x', 50000000) AS x",
        "postgres": "SELECT repeat('x', 50000000) AS x",
    }[kind]
    with pytest.raises(FailsoftError) as caught:
        await call(tool, query=text)
    assert isinstance(caught.value, DownstreamRejected | ToolFailed | DownstreamUnavailable | DownstreamError)
    assert caught.value.downstream == "ask"
    assert (await call(tool, query="SELECT 1 AS a"))["rows"] == [[1]]


async def test_at_the_limit_the_database_stops(kind, database):
    tool = sql_tool("ask", database, timeout=0.7)
    kernel = Kernel()
    guard = kernel.guard("ask")
    began = time.monotonic()
    with pytest.raises((CallTimeout, DownstreamError)) as caught:
        await call(tool, kernel, query=databases.ENDLESS[kind])
    assert time.monotonic() - began < 4
    assert isinstance(caught.value, CallTimeout) or "ended by the database" in str(caught.value)
    for _ in range(300):  # the thread ends, too
        if guard.statistics().in_use == 0:
            break
        await asyncio.sleep(0.02)
    assert guard.statistics().in_use == 0
    assert (await call(sql_tool("ask", database), kernel, query="SELECT 1 AS a"))["rows"] == [[1]]
    await kernel.aclose()


async def test_cancelling_stops_the_database(kind, database):
    tool = sql_tool("ask", database, timeout=20)
    kernel = Kernel()
    guard = kernel.guard("ask")
    task = asyncio.ensure_future(call(tool, kernel, query=databases.ENDLESS[kind]))
    await asyncio.sleep(0.3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for _ in range(300):
        if guard.statistics().in_use == 0:
            break
        await asyncio.sleep(0.02)
    assert guard.statistics().in_use == 0
    await kernel.aclose()


async def test_mistakes_are_told_and_count_against_nobody(database):
    tool = sql_tool("ask", database)
    for query in ("SELECT nothing FROM orders", "SELECT * FROM nowhere"):
        with pytest.raises(DownstreamRejected) as caught:
            await call(tool, query=query)
        assert caught.value.downstream == "ask"
        assert not caught.value.retryable


def test_a_query_of_its_own_is_checked_where_it_is_declared():
    for query in ("DELETE FROM orders", "SELECT :other"):
        with pytest.raises(BadInput):
            sql_tool("x", "sqlite:///x.db", query=query, parameters={"a": {}})
    for address in ("mysql://x/y", "sqlite://host/x", "sqlite:///", "sqlite:///x?mode=rw", "nonsense"):
        with pytest.raises(BadInput):
            sql_tool("x", address)
    with pytest.raises(BadInput, match="NOT_THERE"):
        sql_tool("x", "postgresql://u:${NOT_THERE}@h/d")


# --- each by itself ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sqlite", "duckdb", "postgres"])
async def test_what_cannot_be_reached_is_unavailable(kind, tmp_path):
    address = {
        "sqlite": f"sqlite:///{tmp_path}/nowhere.db",
        "duckdb": f"duckdb:///{tmp_path}/nowhere.duckdb",
        "postgres": f"postgresql://u:secret-word@/d?host={tmp_path}",
    }[kind]
    with pytest.raises(DownstreamUnavailable) as caught:
        await call(sql_tool("ask", address), query="SELECT 1")
    assert "secret-word" not in repr(caught.value)
    assert await asyncio.to_thread(lambda: list(tmp_path.iterdir())) == []


async def test_sqlite_itself_refuses_what_the_parser_would_let_through(addresses):
    tool = sql_tool("ask", addresses("sqlite"), tables=["orders", "leak"])
    assert (await call(tool, query="SELECT count(*) FROM orders"))["rows"] == [[3]]
    assert (await call(tool, query="SELECT value FROM json_each('[7]')"))["rows"] == [[7]]
    assert (await call(tool, query="SELECT token FROM leak"))["rows"] == [["s3cret"]]  # a view that is permitted
    counted = "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 5) SELECT count(*) FROM t"
    assert (await call(tool, query=counted))["rows"] == [[5]]
    database = tool._database
    for sql in (
        "SELECT token FROM secrets",
        "SELECT count(*) FROM secrets",
        "WITH t AS (SELECT token FROM secrets) SELECT count(*) FROM t",
        "SELECT count(*) FROM sqlite_master",
        "INSERT INTO orders VALUES (1, 'x', 1)",
        "DELETE FROM orders",
        "SELECT sql FROM sqlite_master",
        "ATTACH ':memory:' AS x",
        "PRAGMA query_only = OFF",
        "SELECT load_extension('x')",
        "SELECT randomblob(1) FROM sqlite_master",
        "CREATE TEMP TABLE x (a)",
        "SELECT * FROM pragma_table_info('orders')",
        "VACUUM INTO '/tmp/x'",
        "BEGIN",
    ):
        with pytest.raises(BadInput, match="refused"):
            await asyncio.to_thread(database.run, None, sql, {}, ToolContext())


async def test_duckdb_itself_refuses_files_and_settings(addresses, tmp_path):
    tool = sql_tool("ask", addresses("duckdb"))
    kernel = Kernel()
    for sql in (
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM '/etc/passwd'",
        "COPY orders TO '/tmp/failsoft-x'",
        "ATTACH '/tmp/failsoft-x.duckdb'",
        "SET enable_external_access = true",
        "SET memory_limit = '10GB'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "INSERT INTO orders VALUES (1, 'x', 1)",
        "CREATE TABLE x (a INT)",
    ):
        with pytest.raises((DownstreamRejected, DownstreamUnavailable)):
            await asyncio.to_thread(tool._database.run, kernel.guard("ask"), sql, {}, ToolContext())
    await kernel.aclose()


async def test_postgres_itself_refuses_to_write(postgres):
    tool = sql_tool("ask", postgres("owner"))
    kernel = Kernel()
    guard = kernel.guard("ask")
    for sql in (
        "WITH x AS (DELETE FROM orders RETURNING *) SELECT * FROM x",
        "SELECT 1) AS q) AS w; DELETE FROM orders; SELECT (1",
        "SELECT setval('nothing', 1)",
    ):
        with pytest.raises((DownstreamRejected, DownstreamError)):
            await tool._database.query(guard, sql, [], ToolContext())
    assert (await call(tool, kernel, query="SELECT count(*) AS n FROM orders"))["rows"] == [[3]]
    await kernel.aclose()


async def test_postgres_values_are_plain_and_connections_are_used_again(postgres):
    tool = sql_tool("ask", postgres("reader"))
    kernel = Kernel()
    found = await call(
        tool,
        kernel,
        query="SELECT 1.50::numeric AS n, 'NaN'::float8 AS nan, '2024-01-02 03:04:05'::timestamp AS t, "
        "ARRAY[1, 2] AS a, '{\"b\": [1]}'::jsonb AS j, '\\x00ff'::bytea AS y, true AS b, 12345678901234567890 AS big",
    )
    assert found["rows"] == [
        [1.5, "NaN", "2024-01-02T03:04:05", [1, 2], {"b": [1]}, "\\x00ff", True, 12345678901234567890]
    ]
    kept = kernel.guard("ask").keep("postgres", lambda: pytest.fail("it is there"))
    assert len(kept.free) == 1
    first = kept.free[0]
    await call(tool, kernel, query="SELECT 1")
    assert kept.free == [first]
    await kernel.aclose()
    assert first.is_closed()
