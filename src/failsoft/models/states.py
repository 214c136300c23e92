"""What is kept of aliases and their routes from call to call."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from failsoft.base.errors import FailsoftError
from failsoft.base.redaction import REDACTED
from failsoft.kernel.flights import Flights
from failsoft.kernel.guard import Guard
from failsoft.models.answers import AnswerCache
from failsoft.models.limits import InFlightLoad, RequestLimits
from failsoft.models.routes import Alias, Route
from failsoft.models.staged import Staged, StagedChange
from failsoft.models.stickiness import Stickiness

if TYPE_CHECKING:
    from failsoft.models.gateway import Gateway

__all__ = ["MOMENT", "AliasState", "RouteState"]

MOMENT: Final = 0.05
"""Seconds that are kept of a budget for what needs no model: a text, a stale answer, telling of an error. The
route's own limits come that much before the caller's, so that a route that hangs is blamed for it.
"""


_SECRET: Final = 6
"""Characters from which on the value of a route's header is looked for in what an upstream says."""


class RouteState:
    """What is kept of one route of one alias."""

    __slots__ = ("as_asked", "guard", "headers", "index", "load", "route", "secrets", "staged", "url")

    def __init__(
        self,
        index: int,
        route: Route,
        guard: Guard | None,
        on_change: Callable[[StagedChange], None],
        before: RouteState | None,
    ) -> None:
        self.index = index
        self.route = route
        self.url = route.url
        self.headers = {"Content-Type": "application/json", **route.headers}
        """What every request to it has."""
        if route.api_key is not None:
            self.headers["Authorization"] = f"Bearer {route.api_key}"
        self.secrets = tuple(one for one in (route.api_key, *route.headers.values()) if one and len(one) >= _SECRET)
        self.as_asked = route.model is not None and route.system is None and route.max_input_tokens is None
        """Whether prompts go out as they were estimated: only such can correct the estimate."""
        self.guard = guard
        if before is None:
            self.staged = Staged(route.staged, on_change)
            self.load = InFlightLoad(route.capacity)
        else:
            self.staged, self.load = before.staged, before.load
            self.staged.reconfigure(route.staged)
            self.load.capacity = route.capacity

    def scrub(self, error: FailsoftError) -> None:
        """Takes this route's own secrets out of what an upstream has said: some repeat what they were sent."""
        text = error.message
        for secret in self.secrets:
            text = text.replace(secret, REDACTED)
        if text != error.message:
            error.args = (text, *error.args[1:])

    @property
    def usual(self) -> float:
        """Seconds that this route usually needs, for those before it to leave."""
        if self.guard is None:
            return MOMENT
        return self.guard.latency.usual or self.route.usual

    def lent(self, limits: RequestLimits, *, whole: bool) -> tuple[str, ...]:
        """The limits that say nothing about this route when they fire: a caller's budget set them, and too short.

        Else one caller with short budgets could open the breaker for all. How long the first content usually takes is
        known; how long the whole does only of an answer that comes in one piece (`whole`).
        """
        first, idle, total = limits.which
        if total != "budget" and first != "budget" and idle != "budget":
            return ()
        latency = None if self.guard is None else self.guard.latency.healthy_p95
        enough = self.route.usual if latency is None else 1.5 * latency
        found = []
        if total == "budget" and (not whole or limits.total < max(enough, self.route.usual)):
            found.append("total")
        if first == "budget" and limits.first < enough:
            found.append("first_item")
        if idle == "budget":
            found.append("idle")
        return tuple(found)


class AliasState:
    """What is kept of one alias. ``before``: what was kept of it while it was configured otherwise."""

    __slots__ = ("alias", "answers", "flights", "routes", "stickiness")

    def __init__(self, alias: Alias, gateway: Gateway, before: AliasState | None = None) -> None:
        self.alias = alias
        rng = gateway.sources.rng
        self.answers = None if alias.cache is None else AnswerCache(alias.cache, rng=rng)
        self.flights = Flights()
        self.stickiness = Stickiness(alias.stickiness, len(alias.routes), rng=rng)
        known = {} if before is None else {one.route.downstream: one for one in before.routes}
        self.routes: list[RouteState] = [
            RouteState(
                index,
                route,
                None if route.text is not None else gateway.kernel.guard(route.downstream, route.policy),
                gateway.on_staged(alias.name, route.name),
                known.get(route.downstream),
            )
            for index, route in enumerate(alias.routes)
        ]
        if before is None:
            return
        same = {one.index: known[name].index for one in self.routes if (name := one.route.downstream) in known}
        self.stickiness.take_over(before.stickiness, same)
        if list(map(_wording, alias.routes)) == list(map(_wording, before.alias.routes)):
            self.flights = before.flights
            if alias.cache is not None and before.answers is not None:
                self.answers = before.answers
                self.answers.reconfigure(alias.cache)


def _wording(route: Route) -> tuple[object, ...]:
    """What decides what a route says to a question."""
    return (
        route.downstream,
        dict(route.headers),
        route.text,
        route.system,
        route.equivalent,
        route.max_input_tokens,
        route.max_tokens,
        route.output_note,
    )
