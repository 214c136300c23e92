"""Settings that change while the process runs: in place what can, the rest named, the wrong refused."""

import asyncio
import os

import pytest
from tests.runs.worlds import agent, plan, task

from failsoft.app import App, limits_of
from failsoft.config import Settings, keys, load_settings
from failsoft.config.reload import Reloader, changes
from failsoft.models.chat_request import ChatRequest
from failsoft.runs.result import RunRequest

NAMED = ("downstreams.", "models.")


def settings_of(**given):
    return Settings.model_validate(given)


class File:
    """A settings file that changes."""

    def __init__(self, folder):
        self.path = folder / "failsoft.yaml"
        self.time = 1_000_000_000

    def write(self, text):
        self.path.write_text(text, encoding="utf-8")
        self.time += 1_000_000_000
        os.utime(self.path, ns=(self.time, self.time))

    async def change(self, text):
        await asyncio.to_thread(self.write, text)

    def load(self):
        return load_settings(self.path, environ={})

    async def reloader(self, apply):
        settings = await asyncio.to_thread(self.load)
        return await asyncio.to_thread(Reloader, settings, self.load, apply, file=self.path)


def test_changes_are_told_apart_by_scope():
    before = settings_of(downstreams={"x": {"permits": 3}})
    after = settings_of(
        run={"budget": 4},
        server={"port": 1},
        downstreams={"x": {"permits": 5}, "y": {"queue": 1}},
        models={"m": {"routes": {"r": {"text": "hello"}}}},
    )
    now, later = changes(before, after)
    assert now == ("run.budget", "downstreams.x.permits", "downstreams.y")
    assert later == ("server.port", "models.m")
    assert changes(before, before) == ((), ())


async def test_a_change_reaches_runs_and_guards_of_a_running_app_and_keeps_their_state(tmp_path):
    file = File(tmp_path)
    await file.change("run: {budget: 8s}\ndownstreams: {work: {permits: 3, queue: 100}}\nserver: {port: 1}\n")
    first = await asyncio.to_thread(file.load)
    async with App(first, agents=[agent(plan(*(task(f"t{i}", seconds=2.0) for i in range(6))))], store="off") as app:
        reloader = await file.reloader(app.reconfigure)
        guard = app.kernel.guard("work")
        assert (await app.ask("question")).elapsed == 4.0
        calls = guard.statistics().calls
        assert (await reloader.look()) is None

        await file.change("run: {budget: 5s}\ndownstreams: {work: {permits: 6, queue: 100}}\nserver: {port: 2}\n")
        said = await reloader.look()
        assert (said.changed, said.restart) == (("run.budget", "downstreams.work.permits"), ("server.port",))
        result = await app.ask("question")
        assert (result.budget, result.elapsed) == (5.0, 2.0)
        assert app.kernel.guard("work") is guard
        assert guard.statistics().calls == calls + 6
        assert (await reloader.look()) is None

        # fewer permits come by draining: what runs goes on
        handle = app.start(RunRequest("question"))
        await asyncio.sleep(1)
        await file.change("run: {budget: 5s}\ndownstreams: {work: {permits: 1, queue: 100}}\nserver: {port: 2}\n")
        assert (await reloader.look()).changed == ("downstreams.work.permits",)
        assert (await handle.result()).status == "completed"


IN_PLACE = {
    "agent", "profile", "outside.client", "outside.proxy", "run.budget", "run.maximum_budget", "run.max_question",
    "run.task_timeout", "run.max_calls", "run.grace_ceiling", "run.grace_floor", "run.planning_share", "run.max_runs",
    "server.on_disconnect", "background.tasks", "background.budget", "background.maximum_budget", "background.deaths",
    "approvals.expires", "approvals.resume_budget", "approvals.after_degradations",
}  # fmt: skip
"""Keys that change in a running app, apart from those of downstreams and models: each is seen to below."""


def test_no_other_key_says_that_it_changes_in_a_running_app():
    assert {one.path for one in keys() if one.scope != "process" and not one.path.startswith(NAMED)} == IN_PLACE


async def test_what_runs_may_do_changes_in_a_running_app():
    before = settings_of()
    after = settings_of(
        agent="other",
        run={
            "budget": 5, "maximum_budget": 50, "max_question": 77, "task_timeout": 3, "max_calls": 9,
            "grace_ceiling": 0.2, "grace_floor": 0.07, "planning_share": 0.4, "max_runs": 5,
        },
        server={"on_disconnect": "continue"},
        background={"tasks": 3, "budget": 60, "maximum_budget": 90, "deaths": 7},
        approvals={"expires": 30, "resume_budget": 4, "after_degradations": 6},
        outside={"client": 6, "proxy": 8},
    )  # fmt: skip
    now, later = changes(before, after)
    assert set(now) == IN_PLACE - {"profile"}
    assert later == ()
    other = agent(plan(task("a")), name="other")
    async with App(before, agents=[agent(plan(task("a"))), other], store="memory") as app:
        app.reconfigure(after)
        await app.ask("q")
        (run,) = app.known_runs()
        parts = run._run.parts
        assert parts.limits == app.limits == limits_of(after) != limits_of(before)
        assert (run.agent, run.budget, parts.doubts.after) == ("other", 5.0, 6)
        assert app.approvals.expires == 30.0
        assert app.settings.server.on_disconnect == "continue"  # read at each request, as limits of budgets are


def test_models_come_and_go_where_there_are_any():
    def models(**texts):
        return settings_of(models={name: {"routes": {"r": {"text": text}}} for name, text in texts.items()})

    assert changes(models(a="one"), models(a="two", b="three")) == (("models.a.routes", "models.b"), ())
    assert changes(models(a="one", b="three"), models(b="three")) == (("models.a",), ())


async def test_models_change_in_a_running_app(tmp_path):
    file = File(tmp_path)
    await file.change("models: {a: {routes: {r: {text: one}}}}\n")
    first = await asyncio.to_thread(file.load)
    async with App(first, agents=[agent(plan(task("a")))], store="off") as app:
        reloader = await file.reloader(app.reconfigure)

        async def said(model):
            request = ChatRequest({"model": model, "messages": [{"role": "user", "content": "hi"}]}, 50)
            answer = await app.gateway.complete(request, app.gateway.record(request))
            return answer["choices"][0]["message"]["content"]

        assert await said("a") == "one"
        await file.change("models: {a: {routes: {r: {text: two}}}, b: {routes: {r: {text: three}}}}\n")
        assert str(await reloader.look()) == "changed: models.a.routes, models.b"
        assert (await said("a"), await said("b")) == ("two", "three")
        await file.change("models: {b: {routes: {}}}\n")
        assert "b" in (await reloader.look()).error
        assert (await said("a"), await said("b")) == ("two", "three")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("run: {budgte: 3s}\n", "failsoft.yaml:1: run.budgte: unknown key; did you mean budget?"),
        ("run: {budget: 9s}\noutside: {client: 8s}\n", "must be below the 8 s of outside.client"),
        ("run: [\n", "failsoft.yaml:"),
    ],
)
async def test_wrong_settings_leave_the_old_ones_and_it_is_said_why(tmp_path, caplog, text, why):
    file = File(tmp_path)
    await file.change("run: {budget: 6s}\n")
    first = await asyncio.to_thread(file.load)
    async with App(first, agents=[agent(plan(task("a")))], store="off") as app:
        reloader = await file.reloader(app.reconfigure)
        await file.change(text)
        said = await reloader.look()
        assert why in said.error
        assert "the settings stay as they were" in str(said)
        assert why in caplog.text
        assert (await app.ask("question")).budget == 6.0
        assert reloader.settings == first
        await file.change("run: {budget: 7s}\n")
        assert str(await reloader.look()) == "changed: run.budget"
        assert (await app.ask("question")).budget == 7.0


async def test_a_file_that_is_gone_for_a_moment_changes_nothing(tmp_path):
    file = File(tmp_path)
    await file.change("run: {budget: 6s}\n")
    seen = []
    reloader = await file.reloader(seen.append)
    await asyncio.to_thread(file.path.unlink)
    assert (await reloader.look()) is None
    await file.change("run: {budget: 5s}\n")
    assert (await reloader.look()).changed == ("run.budget",)
    assert [one.run.budget for one in seen] == [5.0]


async def test_the_file_is_watched_until_cancelled(tmp_path):
    file = File(tmp_path)
    await file.change("run: {budget: 6s}\n")
    reloader = await file.reloader(lambda settings: None)
    watching = asyncio.ensure_future(reloader.watch(every=1.0))
    await asyncio.sleep(2.5)
    assert reloader.last is None
    await file.change("run: {budget: 5s}\n")
    await asyncio.sleep(1.0)
    assert reloader.last.changed == ("run.budget",)
    await file.change("run: {budget: 4s}\n")
    reloader.ask()  # as a signal does: at once
    await asyncio.sleep(0.5)
    assert reloader.settings.run.budget == 4.0
    watching.cancel()
    await asyncio.wait([watching])


async def test_what_cannot_be_applied_is_an_error_too(tmp_path):
    file = File(tmp_path)
    await file.change("run: {budget: 6s}\n")

    def broken(settings):
        raise RuntimeError

    reloader = await file.reloader(broken)
    await file.change("run: {budget: 5s}\n")
    assert (await reloader.look()).error == "RuntimeError while they were applied"
    assert reloader.settings.run.budget == 6.0
