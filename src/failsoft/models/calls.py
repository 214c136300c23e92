"""What is known of one gateway call: its routes and attempts, its limits, where its time went."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Literal, NamedTuple

__all__ = ["CacheStatus", "CallRecord", "RouteTried"]

CacheStatus = Literal["off", "miss", "hit", "stale", "shared"]


class RouteTried(NamedTuple):
    """A route that did not serve: why (the reading's name, the error's code), and what it cost in seconds."""

    route: str
    reading: str
    code: str
    seconds: float


@dataclass
class CallRecord:
    """Filled in while a call is served; loop times and seconds. Read by headers, metrics, the log line and tests.

    ``route`` and ``model`` are those that answered. ``limits`` says what set the limits of the last attempt (first
    content, idle, total), ``fired`` which limit ended an attempt. ``queue``, ``first`` and ``decode`` split the
    serving attempt's time. ``own`` is our own part of the time so far, in seconds of the process's clock; ``mark``
    is where its present stretch began, 0 while an upstream or a queue is waited for. ``raw`` is the body of a whole
    answer as its upstream sent it, when that is what the client may get.
    """

    alias: str
    request_id: str | None
    tenant: str | None
    stream: bool
    began: float
    tried: list[RouteTried] = field(default_factory=list)
    # From here on a record begins with the class's values: most calls set a few of them.
    route: str | None = field(default=None, init=False)
    model: str | None = field(default=None, init=False)
    degraded: bool = field(default=False, init=False)
    cache: CacheStatus = field(default="off", init=False)
    attempts: int = field(default=0, init=False)
    fired: str | None = field(default=None, init=False)
    limits: tuple[str, str, str] | None = field(default=None, init=False)
    queue: float = field(default=0.0, init=False)
    first: float | None = field(default=None, init=False)
    decode: float | None = field(default=None, init=False)
    ended: float | None = field(default=None, init=False)
    usage: dict[str, Any] | None = field(default=None, init=False)
    finish: str | None = field(default=None, init=False)
    status: int = field(default=200, init=False)
    code: str | None = field(default=None, init=False)
    seam: bool = field(default=False, init=False)
    tokens: float = field(default=0.0, init=False)
    own: float | None = field(default=None, init=False)
    mark: float = field(default=0.0, init=False)
    raw: bytes | None = field(default=None, init=False, repr=False)

    def away(self) -> None:
        """From here on somebody else is waited for."""
        if self.mark:
            self.own = (self.own or 0.0) + perf_counter() - self.mark
            self.mark = 0.0

    def back(self) -> None:
        """From here on the time is ours."""
        if not self.mark:
            self.mark = perf_counter()

    def queued(self, seconds: float) -> None:
        """`seconds` of what passed for ours were waiting for a permit, whether it came to an attempt or not."""
        if seconds > 0:
            self.away()
            self.back()
            self.queue = seconds
            self.own = max(0.0, (self.own or 0.0) - seconds)

    @property
    def seconds(self) -> float:
        """From the door to the end; 0 while it runs."""
        return 0.0 if self.ended is None else self.ended - self.began

    def reason(self) -> str:
        """The split of the time for ``X-LLM-Reason``: ``queue=0.010,first_token=0.420,decode=1.100,fallback=0.000``."""
        lost = sum([one.seconds for one in self.tried]) if self.tried else 0.0
        return (
            f"queue={self.queue:.3f},first_token={self.first or 0.0:.3f},"
            f"decode={self.decode or 0.0:.3f},fallback={lost:.3f}"
        )

    def facts(self) -> dict[str, Any]:
        """What goes into the last chunk of a stream, whose headers were sent before it was known."""
        return {
            "route": self.route,
            "model": self.model,
            "degraded": self.degraded,
            "attempts": self.attempts,
            "fallbacks": [one.route for one in self.tried],
            "limit_fired": self.fired,
            "cache": self.cache,
            "seam": self.seam,
        }
