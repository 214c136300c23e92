import pytest
from tests.runs.worlds import plan, task

from failsoft.runs.progress import History, Progress

PLAN = plan(task("a"), task("b", needs=["a"]), task("c"), task("d", "join", needs=["b", "c"], parts=[]))


def test_without_history_there_is_no_estimate_but_a_share():
    progress = Progress(PLAN, History())
    assert progress.report(0.0).eta is None
    progress.started("a", 0.0)
    progress.ended("a")
    report = progress.report(1.0)
    assert (report.done, report.eta, report.finished, report.total) == (0.25, None, 1, 4)


def test_the_estimate_is_the_longest_way_by_medians_and_is_revised():
    history = History({"tool:work": [1.0, 2.0, 30.0], "tool:join": [4.0]})
    progress = Progress(PLAN, history)
    assert progress.report(0.0).eta == 8.0
    progress.started("a", 0.0)
    progress.started("c", 0.0)
    assert progress.report(1.0).eta == 7.0
    progress.ended("a")
    progress.ended("c")
    report = progress.report(1.0)
    assert (report.eta, report.done) == (6.0, pytest.approx(0.4))
    assert progress.report(1.0, left=2.5).eta == 2.5
    for name in ("b", "d"):
        progress.ended(name)
    assert progress.report(9.0, left=3.0).to_dict() == {
            "done": 1.0, "eta_s": 0.0, "at_most_s": 3.0, "finished": 4, "running": [], "total": 4,
        }  # fmt: skip


def test_an_overdue_task_is_expected_to_take_a_little_longer_and_never_counts_as_done():
    history = History({"tool:work": [1.0]})
    progress = Progress(plan(task("a")), history)
    progress.started("a", 0.0)
    report = progress.report(50.0)
    assert report.eta == pytest.approx(5.0)
    assert report.done == 0.95


def test_what_a_tool_reports_itself_is_believed():
    progress = Progress(plan(task("a")), History())
    progress.started("a", 0.0)
    progress.fraction("a", 0.25, 2.0)
    report = progress.report(2.0)
    assert (report.done, report.eta) == (0.25, 6.0)


def test_a_tool_never_seen_is_judged_by_its_kind():
    history = History()
    history.add(task("x"), 3.0)
    assert history.usual(task("y", "never_seen")) == 3.0
    assert list(history.take_pending()) == [("tool:work", 3.0), ("tool", 3.0)]
    assert list(history.take_pending()) == []


def test_history_is_bounded():
    history = History()
    for i in range(3_000):
        history.load({f"tool:{i}": [1.0] * 60})
    assert len(history._samples) == 1_000
    assert all(len(one) == 50 for one in history._samples.values())
