"""Which route an alias uses now: sticky, with probes to find out when the better one is back.

Pure: takes ``now``. An alias stays on a route until that gives out (five time-outs or three errors in a row, an open
breaker, being taken out, or a drop in judged quality), then moves to the next and stays there: flapping between routes
costs more than a few minutes on the second best. After 4–8 minutes, at random so that aliases do not return together,
one request tries the better route first; if it is served the alias moves back.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Stickiness", "StickinessPolicy"]


@dataclass(frozen=True, slots=True)
class StickinessPolicy:
    """Report E's figures (requirement D6): counts in a row, and the pause before a probe in seconds, drawn evenly."""

    timeouts: int = 5
    errors: int = 3
    probe_after: float = 240.0
    probe_within: float = 480.0

    def __post_init__(self) -> None:
        if not (self.timeouts >= 1 and self.errors >= 1):
            raise ValueError("timeouts and errors must be at least 1")
        if not 0 < self.probe_after <= self.probe_within:
            raise ValueError("needs 0 < probe_after <= probe_within")


@dataclass(slots=True)
class _Route:
    timeouts: int = 0
    errors: int = 0
    out_until: float = -math.inf
    probe_at: float = -math.inf
    probing: bool = False


class Stickiness:
    """The order in which an alias tries its `number` routes, best first by configuration."""

    __slots__ = ("_current", "_routes", "policy", "rng", "switches")

    def __init__(self, policy: StickinessPolicy, number: int, *, rng: random.Random) -> None:
        if number < 1:
            raise ValueError("an alias needs at least one route")
        self.policy = policy
        self.rng = rng
        self.switches = 0
        self._current = 0
        self._routes = [_Route() for _ in range(number)]

    def take_over(self, before: Stickiness, same: Mapping[int, int]) -> None:
        """Goes on where `before` was: `same` maps routes here to the same ones there. A route that is new, and better
        than the one in use, is tried by the next request.
        """
        for here, there in same.items():
            self._routes[here] = before._routes[there]
        self._current = next((here for here, there in same.items() if there == before._current), 0)
        self.switches = before.switches

    @property
    def current(self) -> int:
        """The route in use."""
        return self._current

    def order(self, now: float) -> list[int]:
        """Routes to try now, in order: a better one that is due for its probe, the one in use, those below it.

        Routes that are taken out are left away; when that leaves nothing, the answer is empty and
        :meth:`next_chance` says when to come back.
        """
        order = []
        for index in range(self._current):
            route = self._routes[index]
            if now >= max(route.probe_at, route.out_until) and not route.probing:
                route.probing = True  # one request finds out; its end is told by served() or failed()
                order.append(index)
                break
        order.extend(i for i in range(self._current, len(self._routes)) if now >= self._routes[i].out_until)
        if not order:
            order.extend(i for i in range(self._current) if now >= self._routes[i].out_until)
        return order

    def spare(self, now: float) -> list[int]:
        """Better routes that the alias has left and that are not due yet: for when all in :meth:`order` have failed."""
        return [i for i in range(self._current) if now >= self._routes[i].out_until and not self._routes[i].probing]

    def served(self, index: int, now: float) -> None:
        """Route `index` gave the answer."""
        route = self._routes[index]
        route.timeouts = route.errors = 0
        route.probing = False
        if index < self._current:
            self._current = index
            self.switches += 1

    def failed(self, index: int, now: float, *, timeout: bool) -> bool:
        """Route `index` failed through its own fault; True when the alias moves away from it by that."""
        route = self._routes[index]
        if timeout:
            route.timeouts += 1
        else:
            route.errors += 1
        if route.probing:
            self._rest(route, now)
        return self._give_up(index, now, route.timeouts >= self.policy.timeouts or route.errors >= self.policy.errors)

    def unused(self, index: int) -> None:
        """Route `index` was in the order, or tried, and nothing is to be learned from it (cancelled, refused by us)."""
        self._routes[index].probing = False

    def breaker_opened(self, index: int, now: float) -> bool:
        """The route's breaker opened, or its judged quality dropped: move on at once."""
        return self._give_up(index, now, give_up=True)

    def take_out(self, index: int, now: float, seconds: float) -> bool:
        """The route is of no use for `seconds` (its key is refused, its quota is used up)."""
        self._routes[index].out_until = now + seconds
        return self._give_up(index, now, give_up=True)

    def next_chance(self, now: float) -> float:
        """Seconds until some route may be tried again; 0 when one may be tried now."""
        return max(0.0, min(route.out_until for route in self._routes) - now)

    def _rest(self, route: _Route, now: float) -> None:
        route.probing = False
        route.timeouts = route.errors = 0
        route.probe_at = now + self.rng.uniform(self.policy.probe_after, self.policy.probe_within)

    def _give_up(self, index: int, now: float, give_up: bool) -> bool:
        if not give_up:
            return False
        route = self._routes[index]
        self._rest(route, now)
        if index != self._current:
            return False
        below = [i for i in range(index + 1, len(self._routes)) if now >= self._routes[i].out_until]
        if not below:
            return False  # nothing better to stand on: stay, and keep trying it
        self._current = below[0]
        self.switches += 1
        return True

    def __repr__(self) -> str:
        return f"<Stickiness current={self._current} of {len(self._routes)} switches={self.switches}>"
