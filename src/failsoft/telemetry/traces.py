"""A trace of each run that is worth one, sent by OTLP.

Events are kept while a run runs, which costs an append; whether it gets a trace is decided before a single span is
made: by the share that is sampled (the caller's decision goes first), and always when the run was degraded, failed or
used most of its budget. Spans: the run, its planning, its tasks, and for each call the wait for a permit, every attempt
and every pause, each with the budget that was left.

The exporter works in a thread of the OpenTelemetry SDK with a bounded queue; what does not fit is dropped and counted.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from failsoft.base.errors import ConfigError
from failsoft.base.events import Event
from failsoft.base.tracing import current_trace, own_trace, span_id

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

__all__ = ["Traces"]

_RUNS: Final = 20_000
_EVENTS: Final = 2_000
"""Runs whose events are kept at once, and events of each; the oldest are dropped and counted beyond."""
_SLOW: Final = 0.8
"""The share of its budget beyond which a run is always kept."""
_ENDS: Final = {"run.completed", "run.degraded", "run.failed", "run.cancelled", "run.expired"}
_KEPT: Final = {"run.degraded", "run.failed", "run.expired"}


@dataclass(slots=True)
class _Kept:
    trace: int
    parent: int | None
    sampled: bool
    received: Event
    events: deque[Event] = field(default_factory=lambda: deque(maxlen=_EVENTS))


class Traces:
    """Makes spans of runs' events. Add :meth:`hear` to the bus; call :meth:`close` at the end.

    ``share`` of the runs is sampled (0 to 1). ``on_span`` takes finished spans and must not block:
    ``BatchSpanProcessor(...).on_end``.
    """

    def __init__(
        self,
        on_span: Callable[[ReadableSpan], None],
        *,
        share: float,
        wall: Callable[[], float],
        attributes: Mapping[str, str] | None = None,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource

        self._on_span = on_span
        self._on_close = on_close
        self.share = share
        self._wall = wall
        named = Resource({"service.name": "failsoft", **(attributes or {})})
        self._resource = named.merge(OTELResourceDetector().detect())  # OTEL_RESOURCE_ATTRIBUTES, OTEL_SERVICE_NAME
        self._runs: OrderedDict[str, _Kept] = OrderedDict()
        self.dropped = 0
        """Runs that were forgotten before their end, for lack of room."""
        self.made = 0
        """Traces that were made."""

    def hear(self, event: Event) -> None:
        """Takes an event."""
        run = event.run
        if run is None:
            return
        kept = self._runs.get(run)
        if kept is None:
            if event.kind == "run.received":
                self._begin(run, event)
            return
        kept.events.append(event)
        if event.kind in _ENDS:
            del self._runs[run]
            if kept.sampled or event.kind in _KEPT or event.data["elapsed_ms"] > _SLOW * event.data["budget_ms"]:
                self._make(run, kept, event)

    def _begin(self, run: str, event: Event) -> None:
        context = current_trace.get() or own_trace(run, self.share)
        self._runs[run] = _Kept(context.trace, context.parent or None, context.sampled, event)
        if len(self._runs) > _RUNS:
            self._runs.popitem(last=False)
            self.dropped += 1

    # --- spans -----------------------------------------------------------------------------------------------------

    def _make(self, run: str, kept: _Kept, end: Event) -> None:
        self.made += 1
        offset = self._wall() - asyncio.get_running_loop().time()
        began = end.at - end.data["elapsed_ms"] / 1000
        budget = end.data["budget_ms"] / 1000
        write = _Writer(self, kept, offset, deadline=began + budget)
        root = span_id(run)
        status = end.data["status"]
        error = end.data["error"]
        write.span(
            f"run {kept.received.data['agent']}",
            root,
            kept.parent,
            began,
            end.at,
            {
                "failsoft.run": run,
                "failsoft.agent": kept.received.data["agent"],
                "failsoft.status": status,
                "failsoft.budget_ms": end.data["budget_ms"],
                "failsoft.shortfalls": [f"{one['task']}: {one['reason']}" for one in end.data["shortfalls"]],
            },
            error=None if error is None else error["code"],
            entry=True,
        )
        started: dict[str, Event] = {}
        planning: float | None = None
        for index, event in enumerate(kept.events):
            match event.kind:
                case "run.planning":
                    planning = event.at
                case "run.dispatching" if planning is not None:
                    write.span("planning", span_id(run, "planning"), root, planning, event.at, {})
                    planning = None
                case "task.started":
                    started[event.task or ""] = event
                case "task.finished":
                    self._task(write, run, root, started.pop(event.task or "", None), event)
                case _ if event.downstream is not None:
                    parent = root if event.task is None else span_id(run, "task", event.task)
                    self._call(write, span_id(run, "call", str(index)), parent, event)

    @staticmethod
    def _task(write: _Writer, run: str, root: int, start: Event | None, end: Event) -> None:
        data = end.data
        missed = data["served"] is None
        write.span(
            f"task {end.task}",
            span_id(run, "task", end.task or ""),
            root,
            end.at if start is None else start.at,
            end.at,
            {
                "failsoft.task": end.task or "",
                "failsoft.title": data["title"],
                "failsoft.status": data["status"],
                "failsoft.rung": data["rung"],
                "failsoft.reason": data["reason"] or "",
            },
            error=data["reason"] if missed else None,
        )

    @staticmethod
    def _call(write: _Writer, own: int, parent: int, event: Event) -> None:
        at, data, downstream = event.at, event.data, event.downstream or ""
        about: dict[str, Any] = {"failsoft.downstream": downstream}
        match event.kind:
            case "attempt.finished":
                about |= {"failsoft.attempt": data.attempt, "failsoft.counts": data.counts}
                write.span(
                    f"attempt {downstream}", own, parent, at - data.seconds, at, about, error=data.code, client=True
                )
            case "call.waited":
                write.span(f"queue {downstream}", own, parent, at - data, at, about)
            case "call.retrying":
                write.span(f"backoff {downstream}", own, parent, at, at + data[1], about)
            case "call.rejected":
                write.span(f"refused {downstream}", own, parent, at, at, about, error=data.code)

    def close(self) -> None:
        """Sends what is waiting; blocks for a few seconds at most."""
        if self._on_close is not None:
            self._on_close()

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], *, wall: Callable[[], float]) -> Traces | None:
        """By OpenTelemetry's own variables: None unless ``OTEL_EXPORTER_OTLP_ENDPOINT`` (or ``…_TRACES_ENDPOINT``)
        says where to. ``OTEL_TRACES_SAMPLER`` and its ``_ARG`` give the share, ``OTEL_SDK_DISABLED`` turns all off.

        Raises :class:`~failsoft.base.errors.ConfigError` that names the variable, or the extra that is missing.
        """
        base = environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "").rstrip("/")
        endpoint = environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or (f"{base}/v1/traces" if base else "")
        if not endpoint or environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
            return None
        sampler = environ.get("OTEL_TRACES_SAMPLER", "parentbased_always_on").removeprefix("parentbased_")
        given = environ.get("OTEL_TRACES_SAMPLER_ARG", "1") if sampler == "traceidratio" else "1"
        share = {"always_on": "1", "always_off": "0", "traceidratio": given}.get(sampler)
        if share is None:
            text = (
                f"{sampler[:80]!r} is no sampler: always_on, always_off, traceidratio, or parentbased_ and one of them"
            )
            raise ConfigError(text, param="OTEL_TRACES_SAMPLER")
        try:
            number = float(share)
        except ValueError:
            number = -1.0
        if not 0.0 <= number <= 1.0:
            raise ConfigError("should be a share from 0 to 1", param="OTEL_TRACES_SAMPLER_ARG")
        try:
            return cls.by_otlp(endpoint=endpoint, share=number, wall=wall)
        except ImportError:
            raise ConfigError(
                "OTEL_EXPORTER_OTLP_ENDPOINT is set, but traces need: pip install 'failsoft[otel]'",
                param="OTEL_EXPORTER_OTLP_ENDPOINT",
            ) from None

    @classmethod
    def by_otlp(cls, *, endpoint: str, share: float, wall: Callable[[], float], timeout: float = 5.0) -> Traces:
        """Sends to an OTLP/HTTP receiver, ``http://collector:4318/v1/traces``; its other settings are OpenTelemetry's
        own environment variables. Needs the extra ``otel``.
        """
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        processor = BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint, timeout=timeout), max_queue_size=8192)
        return cls(processor.on_end, share=share, wall=wall, on_close=processor.shutdown)

    def __repr__(self) -> str:
        return f"<Traces running={len(self._runs)} made={self.made} dropped={self.dropped}>"


class _Writer:
    """Makes the spans of one trace."""

    def __init__(self, traces: Traces, kept: _Kept, offset: float, *, deadline: float) -> None:
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
        from opentelemetry.trace.status import Status, StatusCode

        self._traces = traces
        self._trace = kept.trace
        self._offset = offset
        self._deadline = deadline
        self._sampled = TraceFlags(TraceFlags.SAMPLED)
        self._span, self._context, self._kinds = ReadableSpan, SpanContext, SpanKind
        self._ok, self._failed = Status(StatusCode.UNSET), StatusCode.ERROR
        self._status = Status

    def span(
        self,
        name: str,
        own: int,
        parent: int | None,
        start: float,
        end: float,
        attributes: dict[str, Any],
        *,
        error: str | None = None,
        client: bool = False,
        entry: bool = False,
    ) -> None:
        """Hands one span on; times are loop times."""
        attributes["failsoft.remaining_ms"] = round((self._deadline - end) * 1000, 3)
        if error is not None:
            attributes["error.type"] = error
        kind = self._kinds.CLIENT if client else self._kinds.SERVER if entry else self._kinds.INTERNAL
        self._traces._on_span(
            self._span(
                name,
                context=self._context(self._trace, own, is_remote=False, trace_flags=self._sampled),
                parent=None
                if parent is None
                else self._context(self._trace, parent, is_remote=entry, trace_flags=self._sampled),
                resource=self._traces._resource,
                attributes=attributes,
                kind=kind,
                status=self._ok if error is None else self._status(self._failed, error),
                start_time=int((start + self._offset) * 1e9),
                end_time=int((end + self._offset) * 1e9),
            )
        )
