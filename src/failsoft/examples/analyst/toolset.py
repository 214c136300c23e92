"""The analyst's tools: the database behind ``warehouse``, drawing behind ``charts``, arithmetic behind ``analysis``.

All are plain functions and run in threads, so none of them can hold up the loop; a query that nobody waits for any
more is interrupted in the database. Results are the dataclasses of the parts, which are plain data, so they survive
as JSON, too.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field

from failsoft.base.errors import BadInput, DownstreamError, DownstreamUnavailable, MalformedResult
from failsoft.examples.analyst import anomaly
from failsoft.examples.analyst.anomaly import Judgement
from failsoft.examples.analyst.compare import Comparison, changes
from failsoft.examples.analyst.errors import DatabaseError, QueryError
from failsoft.examples.analyst.query import Result, run
from failsoft.examples.analyst.sources import Sources
from failsoft.examples.analyst.spec import Query, SpecError, TableProfile, from_dict
from failsoft.tools.python import PythonTool, tool
from failsoft.tools.registry import ToolContext

__all__ = ["DOWNSTREAMS", "as_data", "make_tools"]

DOWNSTREAMS = {
    "warehouse": {"preset": "data"},
    "analysis": {"preset": "auxiliary"},
    # Drawing is this process's own work, under the interpreter's lock: more at once end no sooner, and all late.
    # The first one imports what draws, for which three seconds are too few when nine others wait behind it.
    "charts": {"preset": "auxiliary", "permits": 2, "call_timeout": "5s", "capped_by_budget": True},
}
"""How the analyst's downstreams are guarded unless the settings say otherwise."""

Data = Annotated[Any, Field(description="the result of an earlier task, as a reference")]
T = TypeVar("T")


class QueryRefused(BadInput):
    """A query that does not fit its table; ``details["reason"]`` says how."""

    code = "query_refused"


def as_data(kind: type[T], value: Any) -> T:
    """A result of an earlier task: as it was returned, or from JSON after a restart."""
    if isinstance(value, kind):
        return value
    try:
        return from_dict(kind, value)
    except SpecError as error:
        raise MalformedResult(f"this is no {kind.__name__}: {error}") from None


def make_tools(sources: Sources) -> tuple[PythonTool[..., Any], ...]:
    """The tools over some tables."""

    @tool(name="query", kind="query", downstream="warehouse", stale_for="1h")
    def query_tool(query: dict[str, Any], context: ToolContext) -> Result:
        """Answers one aggregation over one table: a measure, groups, filters, a period, an order and a limit."""
        try:
            asked = from_dict(Query, query)
        except SpecError as error:
            raise BadInput(f"query: {error}", param="query") from None
        source = sources.get(asked.table)
        cursor = source.connection.cursor()
        try:
            with context.interrupting(cursor.interrupt):
                return run(asked, cursor, profile=source.profile)
        except QueryError as error:
            raise QueryRefused(error.message, param="query", details={"reason": error.code}) from error
        except DatabaseError as error:
            kind = DownstreamUnavailable if error.retryable else DownstreamError
            raise kind(error.message, downstream="warehouse", details={"reason": error.code}) from error
        finally:
            cursor.close()

    @tool(name="compare", downstream="analysis")
    def compare_tool(
        value: Data,
        reference: Data,
        rank: Literal["value", "change"] = "value",
        order: Literal["desc", "asc", "natural"] = "natural",
        limit: int | None = None,
    ) -> Comparison:
        """Sets two answers of `query` against each other, group by group: differences and percent changes."""
        try:
            return changes(as_data(Result, value), as_data(Result, reference), rank=rank, order=order, limit=limit)
        except ValueError as error:
            raise BadInput(str(error), param="reference") from None

    @tool(name="unusual", downstream="analysis")
    def unusual_tool(of: Data, history: Data = None) -> Judgement:
        """Marks what is unusual in a comparison, or in a result, by robust statistics; `history` makes it sharper."""
        if isinstance(of, Result) or (isinstance(of, dict) and "sql" in of):
            return anomaly.unusual_points(as_data(Result, of))
        known = None if history is None else as_data(Result, history)
        return anomaly.unusual(as_data(Comparison, of), history=known)

    @tool(name="chart", downstream="charts")
    def chart_tool(
        kind: Literal["bar", "line", "compare"],
        data: Data,
        title: str = "",
        language: Literal["en", "zh"] = "en",
        judgement: Data = None,
    ) -> bytes:
        """Draws a result or a comparison as a PNG picture, with what is unusual marked."""
        from failsoft.examples.analyst.chart import draw

        shown = _shown(data)
        table = shown.table if isinstance(shown, Result) else shown.left.table
        profile = sources.get(table).profile
        marks = None if judgement is None else as_data(Judgement, judgement)
        return draw(
            kind, shown, title=title, profile=profile, judgement=marks, language=language, source=source_line(profile)
        )

    return query_tool, compare_tool, unusual_tool, chart_tool


def source_line(profile: TableProfile) -> str:
    """The line under a picture."""
    return profile.source


def _shown(data: Any) -> Result | Comparison:
    if data is None:
        raise BadInput("there is nothing to draw", param="data")
    if isinstance(data, Result | Comparison):
        return data
    return as_data(Result, data) if isinstance(data, dict) and "sql" in data else as_data(Comparison, data)
