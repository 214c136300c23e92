import asyncio
import dataclasses
import math
import threading
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

from failsoft.base.errors import AttemptTimeout, BadInput, CallTimeout, TimeoutExceeded, ToolFailed, UnknownTool
from failsoft.kernel.guard import Kernel
from failsoft.testing.clock import VirtualEvent
from failsoft.testing.contracts import check_tool
from failsoft.tools.python import tool
from failsoft.tools.registry import (
    Alternate,
    ResultTooLarge,
    ResultUnserialisable,
    ToolContext,
    ToolRegistry,
    seconds,
)


async def call(one, arguments=None, **context):
    kernel = Kernel()
    try:
        return await one.call(kernel.guard(one.spec.downstream), arguments or {}, ToolContext.current(**context))
    finally:
        await kernel.aclose()


@tool
async def add(a: int, b: int = 1) -> int:
    """Adds two numbers.

    And says nothing else.
    """
    return a + b


@dataclasses.dataclass(frozen=True)
class Query:
    table: str
    limit: int | None = None


class Filter(BaseModel):
    column: str


# --- what a function becomes ---------------------------------------------------------------------------------------


def test_a_function_becomes_a_tool_with_a_schema_from_its_hints():
    spec = add.spec
    assert (spec.name, spec.description, spec.kind, spec.downstream, spec.blocking) == (
        "add",
        "Adds two numbers.",
        "query",
        "add",
        False,
    )
    assert spec.parameters["properties"] == {"a": {"type": "integer"}, "b": {"type": "integer", "default": 1}}
    assert spec.parameters["required"] == ["a"]
    assert spec.to_openai()["function"]["name"] == "add"


def test_options_and_durations_are_read():
    @tool(name="other", kind="external", downstream="w", timeout="500ms", alternates=["x", Alternate("y", True)])
    def plain(question: str) -> str:
        return question

    spec = plain.spec
    assert (spec.name, spec.timeout, spec.blocking, spec.kind) == ("other", 0.5, True, "external")
    assert spec.alternates == (Alternate("x"), Alternate("y", True))
    assert plain("?") == "?"


@pytest.mark.parametrize(
    ("text", "value"), [("500ms", 0.5), ("3s", 3), ("5m", 300), ("1h", 3600), ("2d", 172800), (7, 7)]
)
def test_durations(text, value):
    assert seconds(text) == value


@pytest.mark.parametrize("text", ["", "soon", "-1s", -1, math.nan, math.inf, True, "1 year"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(BadInput):
        seconds(text)


def test_functions_that_cannot_be_called_by_name_are_refused():
    def untyped(a):
        return a

    def positional(a: int, /):
        return a

    def star(*a: int):
        return a

    for function in (untyped, positional, star):
        with pytest.raises(TypeError, match=function.__name__):
            tool(function)


def test_names_that_pydantic_keeps_for_itself_are_allowed():
    @tool
    async def odd(schema: str, model_config: int, _private: bool = False) -> str:
        return f"{schema}{model_config}{_private}"

    assert odd.bind({"schema": "s", "model_config": 1}) == {"schema": "s", "model_config": 1, "_private": False}


def test_free_keywords_are_allowed_when_the_function_takes_them():
    @tool
    async def free(a: int, **rest: Any) -> dict:
        return rest

    assert free.bind({"a": 1, "x": [2]}) == {"a": 1, "x": [2]}


async def test_the_contract_of_tools():
    assert await check_tool(add, {"a": 1}, {"a": "one"}) == 2


GOOGLE = """Revenue.

Args:
    region: Where it was made,
        on two lines.
    quarter (str): When.
"""
NUMPY = """Revenue.

Parameters
----------
region : str
    Where it was made,
    on two lines.
quarter : str
    When.
"""
SPHINX = """Revenue.

:param region: Where it was made,
    on two lines.
:param str quarter: When.
"""


@pytest.mark.parametrize("text", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"])
def test_parameters_are_described_by_the_docstring_in_any_style(text, caplog):
    def revenue(region: str, quarter: str, limit: Annotated[int, Field(description="own", ge=1)] = 10) -> None: ...

    revenue.__doc__ = text + "    limit: not this\n" if text is GOOGLE else text
    spec = tool(revenue).spec
    properties = spec.parameters["properties"]
    assert spec.description == "Revenue."
    assert properties["region"]["description"] == "Where it was made, on two lines."
    assert properties["quarter"] == {"type": "string", "description": "When."}
    assert properties["limit"] == {"type": "integer", "default": 10, "description": "own", "minimum": 1}
    assert caplog.records == []


def test_a_docstring_that_cannot_be_read_is_no_error():
    def odd(a: int) -> None: ...

    odd.__doc__ = "Args:\n  a\n   : :\n:param\n:param :\n\0\n    (((:\n"
    assert "a" in tool(odd).spec.parameters["properties"]


def test_hints_of_cost_are_kept():
    @tool(usual="2s", cost=0.5)
    async def dear() -> None: ...

    assert (dear.spec.usual, dear.spec.cost) == (2.0, 0.5)


# --- arguments -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "param", "text"),
    [
        ({}, "a", "lacks"),
        ({"a": "one"}, "a", "integer"),
        ({"a": 1, "c": 2}, "c", "takes no argument"),
        ({"a": math.nan}, "a", "finite number"),
        ({"a": [1]}, "a", "integer"),
    ],
)
async def test_arguments_that_do_not_fit_are_named(arguments, param, text):
    with pytest.raises(BadInput, match=text) as caught:
        await call(add, arguments)
    assert caught.value.param == param


async def test_nested_arguments_become_dataclasses_and_models():
    @tool
    async def nested(query: Query, filters: list[Filter]) -> str:
        return f"{query.table} {filters[0].column}"

    assert await call(nested, {"query": {"table": "t"}, "filters": [{"column": "c"}]}) == "t c"
    with pytest.raises(BadInput) as caught:
        await call(nested, {"query": {"table": "t"}, "filters": [{"column": 5}]})
    assert caught.value.param == "filters.0.column"


async def test_infinite_and_absurdly_nested_arguments_are_refused_or_passed_and_never_crash():
    @tool
    async def anything(x: Any, y: float = 0.0) -> int:
        return 1

    deep: Any = []
    for _ in range(10_000):
        deep = [deep]
    with pytest.raises(BadInput):
        await call(anything, {"x": 1, "y": math.inf})
    assert await call(anything, {"x": deep}) == 1


def test_values_not_known_yet_are_not_checked():
    add.check({"a": {"$from": "x"}}, unknown={"a"})
    with pytest.raises(BadInput):
        add.check({"a": {"$from": "x"}, "b": "two"}, unknown={"a"})


# --- failures ------------------------------------------------------------------------------------------------------


async def test_cancelled_error_raised_by_the_tool_itself_is_a_failure():
    @tool
    async def lost() -> None:
        raise asyncio.CancelledError

    with pytest.raises(ToolFailed, match="by itself"):
        await call(lost)


async def test_waiting_for_a_task_that_was_cancelled_is_a_failure():
    @tool
    async def waits() -> None:
        child = asyncio.ensure_future(asyncio.sleep(5))
        child.cancel()
        await child

    with pytest.raises(ToolFailed):
        await call(waits)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, BaseException])
async def test_fatal_errors_in_a_thread_are_failures(error):
    @tool
    def fatal() -> None:
        raise error("boom")

    with pytest.raises(ToolFailed, match=error.__name__):
        await call(fatal)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
async def test_fatal_errors_in_a_coroutine_are_failures(error):
    @tool
    async def fatal() -> None:
        raise error("boom")

    with pytest.raises(ToolFailed, match=error.__name__):
        await call(fatal)


async def test_a_result_that_is_too_large_is_named():
    @tool(result_limit=1000)
    async def large(n: int) -> str:
        return "x" * n

    assert len(await call(large, {"n": 900})) == 900
    with pytest.raises(ResultTooLarge, match="large"):
        await call(large, {"n": 5000})


async def test_a_result_that_is_no_plain_data_is_named():
    @tool
    def odd() -> object:
        return {"a": object()}

    with pytest.raises(ResultUnserialisable, match="odd"):
        await call(odd)


@pytest.mark.parametrize(
    "value", [None, True, 1.5, math.nan, "é", b"x", [1], {"a": (1, 2)}, Query("t"), Filter(column="c")]
)
async def test_plain_data_passes(value):
    @tool
    async def gives() -> Any:
        return value

    assert await call(gives) is value


@pytest.mark.parametrize(
    "value",
    [
        ["x" * 1000] * 10_000,
        [[1] * 9, ["x" * 10_000_000]],
        {str(n): {"a": [n] * 100} for n in range(5_000)},
        {"a": {"b": [b"x" * 600_000] * 4}},
        list(range(600_000)),
        "é" * 700_000,
        [{"deep": [["x" * 2_000_000]]}],
    ],
    ids=["texts", "uneven", "dicts", "bytes", "numbers", "characters", "deep"],
)
async def test_a_large_result_is_found_out_in_pieces(value):
    @tool(result_limit=1_000_000)
    async def large() -> Any:
        return value

    @tool(result_limit=1_000_000)
    def threaded() -> Any:
        return value

    for one in (large, threaded):
        with pytest.raises(ResultTooLarge, match=one.spec.name):
            await call(one)


async def test_a_large_result_within_the_limit_passes_and_others_run_meanwhile():
    value = {"rows": [{"n": n, "text": "x" * 100} for n in range(60_000)], "none": None}
    turns = 0

    async def others():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    @tool
    async def large() -> Any:
        return value

    task = asyncio.ensure_future(others())
    assert await call(large) is value
    task.cancel()
    assert turns > 10


async def test_one_odd_thing_in_a_large_result_is_found():
    @tool
    async def odd() -> Any:
        return [*["x" * 100] * 50_000, {"a": object()}]

    with pytest.raises(ResultUnserialisable):
        await call(odd)


# --- the context ---------------------------------------------------------------------------------------------------


async def test_the_context_is_no_argument_and_knows_the_call():
    @tool
    async def knows(context: ToolContext, a: int) -> list:
        return [context.idempotency_key, context.cancelled.is_set(), context.remaining(), a]

    assert "context" not in knows.spec.parameters["properties"]
    assert await call(knows, {"a": 1}, idempotency_key="k") == ["k", False, math.inf, 1]
    with pytest.raises(BadInput):
        await call(knows, {"a": 1, "context": None})


async def test_a_thread_past_its_limit_is_told_and_its_callback_runs():
    event = VirtualEvent()
    seen: list[str] = []

    @tool(timeout=3)
    def stuck(context: ToolContext) -> str:
        context.on_cancel(event.set)
        context.on_cancel(lambda: seen.append("told"))
        event.wait()
        seen.append(f"cancelled {context.cancelled.is_set()}")
        return "late"

    loop = asyncio.get_running_loop()
    start = loop.time()
    with pytest.raises((CallTimeout, AttemptTimeout)):
        await call(stuck)
    assert loop.time() - start == pytest.approx(3)
    await asyncio.sleep(0.01)
    assert sorted(seen) == ["cancelled True", "told"]


async def test_a_coroutine_past_its_limit_sees_that_it_is_cancelled():
    seen: list[bool] = []

    @tool(timeout=1)
    async def slow(context: ToolContext) -> None:
        context.on_cancel(lambda: seen.append(True))
        await asyncio.sleep(10)

    with pytest.raises(TimeoutExceeded):
        await call(slow)
    assert seen == [True]


async def test_a_callback_that_raises_breaks_nothing(caplog):
    context = ToolContext()
    context.on_cancel(lambda: 1 / 0)
    seen: list[int] = []
    context.on_cancel(lambda: seen.append(1))
    removed = context.on_cancel(lambda: seen.append(2))
    removed()
    context.cancelled.set()
    context.cancelled.set()
    context.on_cancel(lambda: seen.append(3))
    assert seen == [1, 3]
    assert "on_cancel" in caplog.text


def test_cancelled_wakes_a_waiting_thread():
    context = ToolContext()
    woken: list[bool] = []
    thread = threading.Thread(target=lambda: woken.append(context.cancelled.wait(10)))
    thread.start()
    context.cancelled.set()
    thread.join(10)
    assert woken == [True]
    assert context.cancelled.wait(0)


# --- the registry --------------------------------------------------------------------------------------------------


def test_the_registry_names_what_there_is():
    registry = ToolRegistry([add])
    assert registry.get("add") is add
    assert "add" in registry
    with pytest.raises(UnknownTool, match="add") as caught:
        registry.get("subtract")
    assert caught.value.details == {"tools": ["add"]}
    with pytest.raises(BadInput, match="two tools"):
        registry.add(add)
    with pytest.raises(BadInput, match="@tool"):
        registry.add(len)
    assert registry.without({"add"}).names == ()


def test_an_alternate_that_is_not_there_is_refused():
    @tool(alternates=["nowhere"])
    async def lonely() -> None: ...

    with pytest.raises(BadInput, match="nowhere"):
        ToolRegistry([lonely]).check()
