"""Figures of runs for ``/metrics``."""

from __future__ import annotations

from failsoft.app import App
from failsoft.telemetry.exposition import Histogram, Page

__all__ = ["run_metrics"]

_SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


def run_metrics(app: App) -> bytes:
    """The Prometheus text: runs now and by their end, what was left behind, and how wrong estimates were."""
    page = Page()
    figures = app.statistics()
    page.family("failsoft_runs_running", "gauge", "Runs that have not ended.", [({}, figures.running)])
    app.metrics.add_to(page)
    page.family("failsoft_tasks_left_behind_total", "counter", "Tasks that did not stop.", [({}, figures.left_behind)])
    if app.forecasts is not None and (errors := app.forecasts.errors()):
        histogram = Histogram(_SHARES)
        for error in errors:
            histogram.observe(error)
        page.histograms(
            "failsoft_run_eta_error_ratio",
            "How wrong the estimated times of the newest 1 000 runs were, as a share of their whole time.",
            [({}, histogram)],
        )
    if figures.recorder is not None:
        page.family("failsoft_store_waiting", "gauge", "Entries to be written.", [({}, figures.recorder.waiting)])
        page.family(
            "failsoft_store_dropped_total", "counter", "Entries that were lost.", [({}, figures.recorder.dropped)]
        )
    return page.text()
