"""The analyst: answers questions about tables, planned by rules or by a model, always with the tools' numbers."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from failsoft.app import App
from failsoft.base.errors import BadInput
from failsoft.config import Settings
from failsoft.examples.analyst.grammar import Grammar, QuestionError
from failsoft.examples.analyst.plans import QuestionRule
from failsoft.examples.analyst.replies import Replies
from failsoft.examples.analyst.sources import Loading, Sources, cache_folder, load_sources
from failsoft.examples.analyst.toolset import make_tools
from failsoft.runs.agents import Agent
from failsoft.runs.chat_endpoint import ChatEndpoint
from failsoft.runs.planner import Planner, RulesPlanner
from failsoft.stores.protocols import RunStore

__all__ = ["NAME", "analyst_app", "loaded_sources", "make_analyst"]

NAME = "analyst"


@contextmanager
def loaded_sources(
    settings: Settings, loading: Loading | None = None, *, question: str | None = None
) -> Iterator[Sources]:
    """The settings' tables, loaded and open; blocking, so before any loop runs. Closes them at the end.

    With the only `question` that will be asked, what draws is imported if the answer has a picture; else with the first
    picture, once it is ready to be.
    """
    cache = cache_folder(settings.cache_dir)
    if question is None and not _fonts_known(cache):
        _warm_up(cache)
    sources = load_sources(settings.data, cache=cache, **({"loading": loading} if loading is not None else {}))
    try:
        if question is not None and _may_draw(question, settings, sources):
            _warm_up(cache)
        yield sources
    finally:
        sources.close()


@asynccontextmanager
async def analyst_app(settings: Settings, sources: Sources, *, store: RunStore | None = None) -> AsyncIterator[App]:
    """A running app with the analyst over `sources`, planned as the settings say; `store` is in memory when None."""
    async with contextlib.AsyncExitStack() as stack:
        model = await _model_planner(settings, sources, stack)
        agent = make_analyst(sources, model=model, planner=settings.run.planner, narrative=settings.model.narrative)
        app = await stack.enter_async_context(App(settings, agents=[agent], store=store or "memory"))
        if model is not None:
            app.kernel.guard("model", settings.policy("model", default="model"))
        yield app


_KNOWN_WITHOUT = ("query", "compare", "unusual", "chart", "narrate")
"""Tools without whose results the answer still says something: what was understood, and what loading the data told."""


def sketch() -> Agent:
    """The analyst without any data: for whoever checks what it needs, and asks it nothing."""
    sources = Sources(())
    return Agent(
        NAME,
        "Answers questions about tables, with charts.",
        tools=make_tools(sources),
        planners=[RulesPlanner(lambda request: None)],
        answer=Replies(()),
        makes_up_for=_KNOWN_WITHOUT,
    )


def make_analyst(
    sources: Sources, *, model: Planner | None = None, planner: str = "auto", narrative: bool = False
) -> Agent:
    """The agent over some tables; `planner` is ``rules``, ``model``, or ``auto``: the model if any, then the rules.

    With a `narrative` the model also tells what the tools found, in words of its own.
    """
    rules = RulesPlanner(QuestionRule(sources.profiles))
    planners: list[Planner]
    if planner == "rules" or (planner == "auto" and model is None):
        planners = [rules]
    elif model is None:
        raise BadInput("--planner: there is no model; set OPENAI_BASE_URL or model.base_url", param="planner")
    else:
        planners = [model] if planner == "model" else [model, rules]
    tools = make_tools(sources)
    if narrative and planner != "rules" and isinstance(endpoint := getattr(model, "endpoint", None), ChatEndpoint):
        from failsoft.examples.analyst.narrative import Narrated, make_narrator

        tools = (*tools, make_narrator(sources.profiles, endpoint))
        planners = [Narrated(one) for one in planners]
    tables = ", ".join(f"{profile.table} ({profile.rows:,} rows)" for profile in sources.profiles)
    return Agent(
        NAME,
        f"Answers questions about tables, with charts: {tables}.",
        tools=tools,
        planners=planners,
        answer=Replies(sources.profiles),
        makes_up_for=_KNOWN_WITHOUT,
    )


def _may_draw(question: str, settings: Settings, sources: Sources) -> bool:
    """Whether the answer may have a chart: by the rules, or because a model plans."""
    if settings.model.base_url is not None and settings.run.planner != "rules":
        return True
    try:
        return Grammar(sources.profiles).read(question).chart is not None
    except QuestionError:
        return False


def _fonts_known(cache: Path) -> bool:
    """Whether what draws has been used on this machine: it need not look for fonts, which takes seconds.

    It is forty megabytes and a third of a server's start, so it waits for somebody who wants a picture.
    """
    os.environ.setdefault("MPLCONFIGDIR", str(cache / "matplotlib"))
    return any(Path(os.environ["MPLCONFIGDIR"]).glob("fontlist-*.json"))


def _warm_up(cache: Path) -> None:
    """Imports what draws, which takes seconds the first time: that is nobody's budget."""
    os.environ.setdefault("MPLCONFIGDIR", str(cache / "matplotlib"))
    with contextlib.suppress(ImportError, RuntimeError):  # without it there are answers, only no charts
        from failsoft.examples.analyst import chart

        chart.font_path()


async def _model_planner(settings: Settings, sources: Sources, stack: contextlib.AsyncExitStack) -> Planner | None:
    base_url = settings.model.base_url
    if base_url is None or settings.run.planner == "rules":
        return None
    from failsoft.examples.analyst.framing import QuestionForm
    from failsoft.runs.model_planner import ModelPlanner
    from failsoft.transports.aiohttp_transport import AiohttpTransport

    transport = AiohttpTransport()
    stack.push_async_callback(transport.aclose)
    key = settings.model.api_key
    return ModelPlanner(
        transport,
        base_url=base_url,
        api_key=key.get_secret_value() if key is not None else "",
        model=settings.model.name,
        form=QuestionForm(sources.profiles),
        max_tokens=400,
        first_token=settings.model.first_token,
    )
