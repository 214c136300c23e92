"""What settings mean for the parts: the agents' tools, limits, what is kept, the store."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from failsoft.base.errors import BadInput, ConfigError
from failsoft.config import Settings
from failsoft.runs.agents import Agent, AgentRegistry
from failsoft.runs.durable import DurableLimits
from failsoft.runs.limits import RunLimits
from failsoft.stores.keeping import Retention
from failsoft.stores.protocols import RunStore
from failsoft.tools.registry import ToolSource

if TYPE_CHECKING:
    from failsoft.runs.golden import GoldenAnswers

__all__ = ["durable_limits_of", "equipped", "golden_of", "limits_of", "retention_of", "store_of"]


def equipped(agents: Iterable[Agent], settings: Settings) -> list[Agent]:
    """The agents with the tools that the settings give them."""
    known = {agent.name: agent for agent in AgentRegistry(agents)}  # which refuses two of one name
    for wanted, made in settings.tools.made():
        for name in wanted:
            if name not in known:
                raise ConfigError(f"tools: there is no agent {name!r}; there are: {', '.join(known)}", param="tools")
        for name in wanted or tuple(known):
            try:
                if isinstance(made, ToolSource):
                    known[name] = known[name].with_tools((), (made,))
                else:
                    known[name] = known[name].with_tools((made,))
            except BadInput as error:
                raise ConfigError(f"tools: agent {name!r}: {error.message}", param="tools") from None
    return list(known.values())


def golden_of(settings: Settings) -> GoldenAnswers | None:
    """The prepared answers that the settings name; raises :class:`ConfigError` naming the place that is wrong."""
    if settings.golden is None:
        return None
    from failsoft.runs.golden import GoldenAnswers

    return GoldenAnswers.load(settings.golden)


def limits_of(settings: Settings) -> RunLimits:
    """What the settings allow a run."""
    run, background, approvals = settings.run, settings.background, settings.approvals
    return RunLimits(
        default_budget=run.budget,
        max_budget=run.maximum_budget,
        max_question=run.max_question,
        background_budget=background.budget,
        max_background_budget=background.maximum_budget,
        background_width=background.tasks,
        deaths=background.deaths,
        resume_budget=approvals.resume_budget,
        review_after=approvals.after_degradations,
        task_timeout=run.task_timeout,
        max_calls=run.max_calls,
        grace_ceiling=run.grace_ceiling,
        grace_floor=run.grace_floor,
        planning_share=run.planning_share,
        max_runs=run.max_runs,
    )


def durable_limits_of(settings: Settings) -> DurableLimits:
    """What the settings say of background runs, approvals and what is kept."""
    background = settings.background
    return DurableLimits(
        width=background.width,
        queue=background.queue,
        lease=background.lease,
        skew=background.clock_skew,
        approval_expires=settings.approvals.expires,
        retention=retention_of(settings),
        prune_every=settings.store.prune_every,
    )


def retention_of(settings: Settings) -> Retention:
    """How long the settings have things kept; runs for their longest budget and 300 s at least."""
    store = settings.store
    least = settings.run.maximum_budget + 300
    return Retention(
        runs=max(store.keep_runs, least),
        keyed=store.keep_keys,
        sessions=store.keep_sessions,
        details=max(store.keep_details, least),
    )


def store_of(settings: Settings) -> RunStore | None:
    """The store that the settings name; None when they name none. Whoever makes it closes it."""
    if settings.store.path is None:
        return None
    from failsoft.base.redaction import Redactor
    from failsoft.stores.sqlite import SqliteStore

    return SqliteStore(
        settings.store.path,
        synchronous="FULL" if settings.store.synchronous == "full" else "NORMAL",
        redactor=Redactor(patterns=settings.redaction.patterns, names=settings.redaction.names),
        migrate=settings.store.migrate,
    )
