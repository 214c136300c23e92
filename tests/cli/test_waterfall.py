"""The picture of where a run's time went."""

from failsoft.base.events import Event
from failsoft.cli.waterfall import bars_of, drawn, ms
from failsoft.kernel.guard import CallEnded


def event(kind, at, task=None, data=None):
    return Event(kind, at, "warehouse" if task else None, "run_1", task, data=data)


def ended(at, task, seconds, code=None, attempt=1):
    return event("attempt.finished", at, task, CallEnded(seconds, "ok", code, attempt, 1.0))


RUN = [
    event("run.received", 10.0),
    event("run.planning", 10.0),
    event("run.dispatching", 10.5),
    event("task.started", 10.5, "query"),
    ended(12.0, "query", 1.0, "attempt_timeout"),
    ended(13.0, "query", 0.5, attempt=2),
    event("task.finished", 13.0, "query"),
    event("task.started", 13.0, "chart"),
    event("run.aggregating", 14.0),
    event("run.degraded", 14.1),
]


def test_each_stretch_of_time_has_its_place():
    bars = bars_of(RUN)
    assert [(bar.label, round(bar.start, 3), round(bar.end, 3), bar.note) for bar in bars] == [
        ("planning", 0.0, 0.5, ""),
        ("query", 0.5, 3.0, "attempt_timeout"),
        ("chart", 3.0, 4.0, ""),
        ("aggregation", 4.0, 4.1, ""),
    ]
    query = bars[1]
    assert [round(query.spent(kind), 3) for kind in ("wait", "failed", "pause", "attempt")] == [0.5, 1.0, 0.5, 0.5]
    assert [segment.kind for segment in query.segments] == ["wait", "failed", "pause", "attempt"]


def test_the_picture_fits_its_width_and_ends_with_the_sum():
    lines = drawn(bars_of(RUN), budget=5.0, elapsed=4.1, width=80)
    assert len(lines) == 6
    assert all(line.index("│") == lines[0].index("│") for line in lines[:-2])
    assert "▒" in lines[1]
    assert lines[1].endswith("attempt_timeout")
    assert lines[-2].strip().startswith("in all")
    assert "4.10 s  of 5.00 s, 900 ms left" in lines[-2]
    assert all(text in lines[-1] for text in ("░ waiting", "█ attempt", "▒ failed or cut", "· pause"))


def test_nothing_happened_yet():
    assert bars_of([]) == []
    assert len(drawn([], budget=1.0, elapsed=0.0)) == 1


def test_a_run_that_failed_at_once_has_no_bars_beyond_planning():
    events = [event("run.received", 1.0), event("run.planning", 1.0), event("run.failed", 1.2)]
    assert [(bar.label, round(bar.seconds, 3)) for bar in bars_of(events)] == [("planning", 0.2)]


def test_durations_for_people():
    assert [ms(0.0), ms(0.0124), ms(0.99949), ms(0.9999), ms(12.345)] == [
        "0 ms",
        "12 ms",
        "999 ms",
        "1.00 s",
        "12.35 s",
    ]
