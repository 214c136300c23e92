"""The tiers of time: call < task < run < client's patience ≤ front proxy. No inner limit outlasts an outer one.

Only what was written is judged: a preset's limit may exceed a small budget, which then ends its calls. Attempts ×
limits and back-offs must fit their call, and that its task and run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from failsoft.config.downstreams import DownstreamSettings
from failsoft.config.sections import Settings
from failsoft.kernel.retry import RetryPolicy

__all__ = ["Overrun", "overruns", "worst_case"]

Path = tuple[str, ...]


class Overrun(NamedTuple):
    """An inner limit that exceeds its outer one: both paths, and in words why."""

    inner: Path
    outer: Path
    message: str


def overruns(settings: Settings) -> Iterator[Overrun]:
    """Every pair of settings of which the inner one outlasts the outer one."""
    run, outside = settings.run, settings.outside
    budget = ("run", "budget")
    if outside.client is not None and run.budget >= outside.client:
        yield _over(budget, run.budget, ("outside", "client"), outside.client, "must be below")
    if outside.proxy is not None:
        if outside.client is not None and outside.client > outside.proxy:
            yield _over(("outside", "client"), outside.client, ("outside", "proxy"), outside.proxy, "must not exceed")
        if run.budget >= outside.proxy:
            yield _over(budget, run.budget, ("outside", "proxy"), outside.proxy, "must be below")
    if run.task_timeout is not None and run.task_timeout > run.budget:
        yield _over(("run", "task_timeout"), run.task_timeout, budget, run.budget, "must not exceed")
    for name, section in settings.downstreams.items():
        yield from _of_downstream(settings, ("downstreams", name), section, ends=_ends(settings))
    gateway: list[tuple[Path, float]] = [(("gateway", "budget"), settings.gateway.budget)]
    for alias, model in settings.models.items():
        for route, one in model.routes.items():
            if one.guard is not None:
                place = ("models", alias, "routes", route, "guard")
                yield from _of_downstream(settings, place, one.guard, ends=gateway)


def _ends(settings: Settings) -> list[tuple[Path, float]]:
    """What ends a tool's call from outside, innermost first."""
    found: list[tuple[Path, float]] = []
    if settings.run.task_timeout is not None:
        found.append((("run", "task_timeout"), settings.run.task_timeout))
    found.append((("run", "budget"), settings.run.budget))
    return found


def _of_downstream(
    settings: Settings, path: Path, section: DownstreamSettings, *, ends: list[tuple[Path, float]]
) -> Iterator[Overrun]:
    call, attempt = section.call_timeout, section.attempt_timeout
    capped = "; or say capped_by_budget: true"
    if attempt is not None and section.retries is not None:
        policy = section.policy("external" if path[0] == "downstreams" else "model")
        needs = worst_case(attempt, section.retries, policy.retry)
        outers: list[tuple[Path, float]] = [] if call is None else [((*path, "call_timeout"), call)]
        outers += [] if section.capped_by_budget else ends
        for outer, limit in outers:
            if needs > limit:
                text = (
                    f"{section.retries + 1} attempts of {attempt:g} s with their back-offs need {needs:g} s, more than "
                    f"the {limit:g} s of {'.'.join(outer)}"
                )
                yield Overrun((*path, "attempt_timeout"), outer, text + ("" if outer[0] == path[0] else capped))
                return
    if section.capped_by_budget:
        return
    inner: Callable[[str], Path] = lambda key: (*path, key)  # noqa: E731 - two words for one place
    for key, value in (("call_timeout", call), ("attempt_timeout", attempt)):
        for outer, limit in ends:
            if value is not None and value > limit:
                yield _over(inner(key), value, outer, limit, "must not exceed", capped)
                return


def worst_case(attempt: float, retries: int, policy: RetryPolicy) -> float:
    """Seconds that all attempts take when each uses its limit and each back-off is the longest there is."""
    pauses = (min(policy.cap, (policy.base + policy.spread) * 2.0**i) for i in range(retries))
    return (retries + 1) * attempt + sum(pauses)


def _over(inner: Path, value: float, outer: Path, limit: float, must: str, more: str = "") -> Overrun:
    return Overrun(inner, outer, f"{value:g} s {must} the {limit:g} s of {'.'.join(outer)}{more}")
