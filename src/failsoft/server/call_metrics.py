"""Figures of the gateway's calls, under the names of OpenTelemetry's conventions for generative AI and our own.

One series is kept for each route and end that was seen; aliases, routes and statuses are few, so series are. Guards
are asked for theirs when somebody scrapes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from failsoft.kernel.guard import Kernel
from failsoft.models.calls import CallRecord
from failsoft.models.webhook import Webhook
from failsoft.server.auth import KeyRing
from failsoft.telemetry.exposition import Histogram, Page
from failsoft.telemetry.metrics import downstream_families

__all__ = ["CallMetrics"]

_SECONDS: Final = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_FIRST: Final = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_TOKENS: Final = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864)
_OWN: Final = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1)

_Key = tuple[str, str, str, str, int]


class _Series:
    """Calls of one operation, alias, route, model and status."""

    __slots__ = ("attempts", "degraded", "first", "input", "output", "seconds", "streams")

    def __init__(self) -> None:
        self.seconds = Histogram(_SECONDS)
        self.first = Histogram(_FIRST)
        self.input = Histogram(_TOKENS)
        self.output = Histogram(_TOKENS)
        self.attempts = 0
        self.degraded = 0
        self.streams = 0


class CallMetrics:
    """Counts calls; :meth:`page` is what a scrape gets."""

    def __init__(self) -> None:
        self._series: dict[_Key, _Series] = {}
        self._fallbacks: Counter[tuple[str, str, str]] = Counter()
        self._fired: Counter[tuple[str, str]] = Counter()
        self._cache: Counter[tuple[str, str]] = Counter()
        self._refused: Counter[tuple[str, int]] = Counter()
        self._own = Histogram(_OWN)
        self.in_flight = 0

    def refused(self, code: str, status: int) -> None:
        """A call that was answered before it had a record: no key, a bad body, an unknown model."""
        self._refused[code, status] += 1

    def record(self, operation: str, record: CallRecord) -> None:
        """A call that has ended."""
        key = (operation, record.alias, record.route or "", record.model or "", record.status)
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = _Series()
        series.seconds.observe(record.seconds)
        series.attempts += record.attempts
        if record.first is not None and record.stream:
            series.streams += 1
            series.first.observe(record.queue + record.first)
        usage = record.usage
        if usage is not None:
            tokens = usage.get("prompt_tokens")
            if type(tokens) is int:
                series.input.observe(tokens)
            tokens = usage.get("completion_tokens")
            if type(tokens) is int:
                series.output.observe(tokens)
        if record.degraded:
            series.degraded += 1
        if record.cache != "off":
            self._cache[record.alias, record.cache] += 1
        for one in record.tried:
            self._fallbacks[record.alias, one.route, one.reading] += 1
        if record.fired is not None:
            self._fired[record.alias, record.fired] += 1
        if record.own is not None:
            self._own.observe(record.own)

    def _attempts(self) -> Mapping[str, int]:
        found: Counter[str] = Counter()
        for (_, alias, *_), series in self._series.items():
            found[alias] += series.attempts
        return found

    def page(self, kernel: Kernel, ring: KeyRing, *, log_dropped: int = 0, webhook: Webhook | None = None) -> bytes:
        """The Prometheus text."""
        page = Page()
        series = [(_names(key), one) for key, one in self._series.items()]
        page.histograms(
            "gen_ai_client_operation_duration_seconds",
            "Time of gateway calls.",
            ((names, one.seconds) for names, one in series),
        )
        page.histograms(
            "gen_ai_server_time_to_first_token_seconds",
            "Time to the first content of streams, queueing included.",
            ((names, one.first) for names, one in series if one.streams),
        )
        page.histograms(
            "gen_ai_client_token_usage",
            "Tokens as upstreams report them.",
            (
                ({**names, "gen_ai_token_type": kind}, counted)
                for names, one in series
                for kind, counted in (("input", one.input), ("output", one.output))
                if counted.count
            ),
        )
        page.family(
            "failsoft_gateway_calls_total",
            "counter",
            "Calls by route and status; 499: the client went away.",
            (
                ({"alias": key[1], "route": key[2], "operation": key[0], "status": str(key[4])}, one.seconds.count)
                for key, one in self._series.items()
            ),
        )
        page.family(
            "failsoft_gateway_degraded_total",
            "counter",
            "Calls served by a lower-quality route or a stale answer.",
            (({"alias": key[1], "route": key[2]}, one.degraded) for key, one in self._series.items() if one.degraded),
        )
        page.family(
            "failsoft_gateway_refused_total",
            "counter",
            "Requests refused at the door, by code and status.",
            (({"code": code, "status": str(status)}, count) for (code, status), count in self._refused.items()),
        )
        page.family(
            "failsoft_gateway_fallbacks_total",
            "counter",
            "Routes that did not serve, by why.",
            (({"alias": a, "route": r, "reading": why}, count) for (a, r, why), count in self._fallbacks.items()),
        )
        page.family(
            "failsoft_gateway_attempts_total",
            "counter",
            "Requests sent to upstreams.",
            (({"alias": alias}, count) for alias, count in self._attempts().items()),
        )
        page.family(
            "failsoft_gateway_limits_fired_total",
            "counter",
            "Time limits that ended an attempt or a call.",
            (({"alias": alias, "limit": limit}, count) for (alias, limit), count in self._fired.items()),
        )
        page.family(
            "failsoft_gateway_cache_total",
            "counter",
            "Calls by what the exact cache and coalescing did.",
            (({"alias": alias, "status": status}, count) for (alias, status), count in self._cache.items()),
        )
        page.histograms(
            "failsoft_gateway_own_seconds", "The gateway's own time per call.", [({}, self._own)] if series else []
        )
        page.family("failsoft_gateway_in_flight", "gauge", "Calls in flight.", [({}, self.in_flight)])
        page.family(
            "failsoft_gateway_key_refused_total",
            "counter",
            "Calls refused by a key's own limits.",
            (({"key": one.name}, one.refused) for one in ring.callers if one.name is not None),
        )
        page.family(
            "failsoft_gateway_key_in_flight",
            "gauge",
            "Calls in flight by key.",
            (({"key": one.name}, one.in_flight) for one in ring.callers if one.name is not None),
        )
        page.family(
            "failsoft_gateway_log_dropped_total", "counter", "Log lines that could not be written.", [({}, log_dropped)]
        )
        if webhook is not None:
            page.family(
                "failsoft_gateway_webhook_total",
                "counter",
                "Messages to the webhook.",
                (({"result": one}, getattr(webhook, one)) for one in ("sent", "failed", "dropped")),
            )
        downstream_families(page, kernel)
        return page.text()


def _names(key: _Key) -> dict[str, str]:
    operation, alias, route, model, status = key
    names = {"gen_ai_operation_name": operation, "gen_ai_request_model": alias, "failsoft_route": route}
    if model:
        names["gen_ai_response_model"] = model
    if status >= 400:
        names["error_type"] = str(status)
    return names
