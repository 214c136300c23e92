"""Watching runs: frames made once, resumed at any id, bounded for slow readers; snapshots where events are lost."""

import asyncio
import json
from typing import Any

import pytest
from tests.runs.worlds import App, app, plan, task

from failsoft.base.errors import StoreError
from failsoft.base.events import Event
from failsoft.runs.handle import RunHandle
from failsoft.runs.result import RunRequest
from failsoft.runs.run import Run
from failsoft.server import watching
from failsoft.server.agui import Projection
from failsoft.server.pieces import pieces
from failsoft.server.watching import Audience, LiveFrames, Looks, StoredFrames
from failsoft.stores.memory import MemoryStore
from failsoft.stores.protocols import CreateRun, RunRecord, StoredEvent, StoredRun

LONG = plan(task("a", seconds=1), task("b", seconds=2, needs=["a"]), task("c", "hanging", needs=["a"], essential=False))


def told(raw: bytes) -> list[dict[str, Any]]:
    """The events of some frames, each with its id."""
    found = []
    for block in raw.decode().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line and not line.startswith(":"))
        if "data" in lines:
            found.append({**json.loads(lines["data"]), "id": lines.get("id")})
    return found


async def everything(frames: Any, *, wait: float = 1000.0) -> list[dict[str, Any]]:
    found = []
    while (piece := await frames.take(wait)) is not None:
        found.extend(told(piece))
    return found


def types(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]


def check_segments(events: list[dict[str, Any]]) -> None:
    """Everything that is begun is ended, once, and there is one end."""
    steps: list[str] = []
    message = False
    for event in events:
        kind = event["type"]
        if kind == "STEP_STARTED":
            assert event["stepName"] not in steps
            steps.append(event["stepName"])
        elif kind == "STEP_FINISHED":
            steps.remove(event["stepName"])
        elif kind == "TEXT_MESSAGE_START":
            assert not message
            message = True
        elif kind == "TEXT_MESSAGE_CONTENT":
            assert message
        elif kind == "TEXT_MESSAGE_END":
            assert message
            message = False
    assert (steps, message) == ([], False)
    assert types(events)[0] == "RUN_STARTED"
    assert [kind for kind in types(events) if kind in ("RUN_FINISHED", "RUN_ERROR")] == [types(events)[-1]]


def begun(world: App, budget: float = 10.0, **options: Any) -> RunHandle:
    return world.start(RunRequest("q", budget_ms=budget * 1000, **options))


async def test_all_who_watch_get_the_same_and_the_frames_are_made_once(monkeypatch):
    made = 0
    frames = Projection.frames

    def counted(self, event, result, cause=None):
        nonlocal made
        made += 1
        return frames(self, event, result, cause)

    monkeypatch.setattr(Projection, "frames", counted)
    async with app(LONG) as world:
        handle, audience = begun(world), Audience()
        leaves = [audience.join(handle) for _ in range(50)]
        got = await asyncio.gather(*(everything(LiveFrames(audience, handle)) for _ in range(50)))
        assert made <= handle.last + 50  # the end is made for each: it may be strict
        for leave in leaves:
            leave()
        check_segments(got[0])
        assert all(one == got[0] for one in got)
        assert repr(audience) == "<Audience runs=0 watchers=0>"


async def test_coming_back_after_any_id_misses_nothing_and_repeats_nothing():
    """Case 17."""
    async with app(LONG) as world:
        handle, audience = begun(world), Audience()
        audience.join(handle)
        whole = await everything(LiveFrames(audience, handle))
        ids = [event["id"] for event in whole if event["id"]]
        for left in ids[:-1]:
            rest = await everything(LiveFrames(audience, handle, after=left))
            place = max(index for index, event in enumerate(whole) if event["id"] == left)
            assert rest == whole[place + 1 :]
        assert await everything(LiveFrames(audience, handle, after=ids[-1])) == []


@pytest.mark.parametrize("after", ["7.1", "1.999", "x", "1.-1", "1.1e1", "", "9" * 400 + ".1", "1." + "9" * 400])
async def test_an_unknown_id_gets_a_snapshot_with_what_is_open(after):
    async with app(LONG) as world:
        handle, audience = begun(world), Audience()
        audience.join(handle)
        await asyncio.sleep(2)
        events = await everything(LiveFrames(audience, handle, after=after))
        check_segments(events)
        assert types(events)[:4] == ["RUN_STARTED", "STATE_SNAPSHOT", "STEP_STARTED", "TOOL_CALL_START"]
        snapshot = events[1]["snapshot"]
        assert (snapshot["run_id"], snapshot["status"]) == (handle.run_id, "dispatching")
        assert [one["status"] for one in snapshot["tasks"]] == ["completed", "running", "running"]
        assert {event["stepName"] for event in events if event["type"] == "STEP_STARTED"} == {"b", "c"}


async def test_a_snapshot_after_the_end_has_the_result_and_one_end():
    async with app(plan(task("a"))) as world:
        handle, audience = begun(world), Audience()
        result = await handle.result()
        audience.join(handle)
        events = await everything(LiveFrames(audience, handle, after="9.9"))
        check_segments(events)
        assert events[1]["snapshot"]["answer"] == events[-1]["result"]["answer"] == result.answer
        again = await everything(LiveFrames(audience, handle, after=events[-2]["id"] or events[1]["id"]))
        assert types(again)[-1] == "RUN_FINISHED"


async def test_who_falls_behind_is_told_and_gets_a_snapshot_when_it_comes_back(monkeypatch):
    monkeypatch.setattr(watching, "_FRAMES", 20)
    async with app(plan(task("a", seconds=100))) as world:
        handle, audience = begun(world, 110.0), Audience()
        slow, quick = LiveFrames(audience, handle), LiveFrames(audience, handle)
        audience.join(handle)
        await asyncio.sleep(1)
        first = told(await slow.take(1) or b"") + told(await slow.take(1) or b"")
        reading = asyncio.create_task(everything(quick))
        for number in range(50):
            world_run(world).emit("text.delta", None, {"text": f"{number} "})
            await asyncio.sleep(0.1)
        last = await everything(slow)
        assert [event.get("name") for event in last] == ["lagging"]
        back = LiveFrames(audience, handle, after=next(event["id"] for event in first if event["id"]))
        events = await everything(back)
        check_segments(events)
        said = "".join(event["delta"] for event in events if event["type"] == "TEXT_MESSAGE_CONTENT")
        assert said.startswith("0 1 2 3 ")
        assert types(await reading)[-1] == "RUN_FINISHED"


def world_run(world: App) -> Run:
    (run,) = world._active.values()
    return run


async def test_a_run_that_said_more_than_is_kept_begins_with_a_snapshot():
    async with app(plan(task("a", seconds=100))) as world:
        handle, audience = begun(world, 110.0), Audience()
        await asyncio.sleep(1)
        for number in range(12_000):
            world_run(world).emit("task.progress", "a", {"fraction": number / 12_000})
        audience.join(handle)
        frames = LiveFrames(audience, handle)
        events = told(await frames.take(1) or b"")
        assert types(events) == ["RUN_STARTED", "STATE_SNAPSHOT", "STEP_STARTED", "TOOL_CALL_START", "TOOL_CALL_END"]
        check_segments(events + await everything(frames))


async def test_who_watches_does_not_end_a_run_by_leaving_but_who_asked_does():
    async with app(LONG) as world:
        audience = Audience()
        watched = begun(world)
        audience.join(watched)()
        assert not watched.done
        owner, watcher = audience.join(watched, owner=True), audience.join(watched)
        owner()
        assert not watched.done  # somebody still watches
        watcher()
        watcher()
        assert str(watched.state) == "cancelled"

        kept = begun(world)
        kept.keep()
        audience.join(kept, owner=True)()
        audience.join(kept)()  # a page that is loaded anew, and closed
        assert not kept.done
        background = begun(world, background=True)
        audience.join(background, owner=True)()
        assert background.kept


async def test_a_strict_watcher_sees_a_degraded_run_end_as_an_error():
    async with app(LONG) as world:
        handle, audience = begun(world, 2.0), Audience()
        audience.join(handle)
        frames = LiveFrames(audience, handle, strict=True), LiveFrames(audience, handle)
        strict, mild = await asyncio.gather(*map(everything, frames))
        assert (types(strict)[-1], types(mild)[-1]) == ("RUN_ERROR", "RUN_FINISHED")
        assert strict[-1]["result"] == mild[-1]["result"]
        assert strict[:-1] == mild[:-1]


async def test_silence_gives_nothing_in_time():
    async with app(plan(task("a", "hanging"))) as world:
        handle, audience = begun(world, 60.0), Audience()
        audience.join(handle)
        frames = LiveFrames(audience, handle)
        loop = asyncio.get_running_loop()
        while loop.time() < 32:  # an estimate came at 31 s, the next is due at 56
            await frames.take(1)
        began = loop.time()
        assert await frames.take(7) == b""
        assert loop.time() - began == 7


# --- runs that only the store knows ----------------------------------------------------------------------------------


async def stored_of(world: App, store: MemoryStore, handle: RunHandle) -> StoredRun:
    assert world._recorder is not None
    await world._recorder.drain()
    found = await store.load_run(handle.run_id)
    assert found is not None
    return found


async def test_a_run_in_the_store_is_watched_like_one_that_is_here():
    store = MemoryStore()
    async with app(LONG, store=store) as world:
        handle, audience = begun(world), Audience()
        audience.join(handle)
        live = await everything(LiveFrames(audience, handle))
        stored = await stored_of(world, store, handle)
        got = await everything(StoredFrames(stored, lambda: store.load_run(handle.run_id)))
        check_segments(got)
        assert types(got) == types(live)
        assert got[:-1] == live[:-1]
        assert got[-1]["result"]["answer"] == live[-1]["result"]["answer"]
        ids = [event["id"] for event in live if event["id"]]
        after = await everything(StoredFrames(stored, lambda: store.load_run(handle.run_id), after=ids[3]))
        assert [event["id"] for event in after if event["id"]] == ids[4:]
        lost = await everything(StoredFrames(stored, lambda: store.load_run(handle.run_id), after="5.5"))
        check_segments(lost)
        assert lost[1]["snapshot"]["status"] == "degraded"


async def test_a_run_that_another_process_drives_is_followed_to_its_end():
    store = MemoryStore()
    await store.write([CreateRun(RunRecord("run_x", "a", {"input": "q"}, 0.0, 8.0, "elsewhere"))])

    async def drive() -> None:
        await store.append_events("run_x", 1, [StoredEvent(1, 1, "run.received", 0.0)])
        await asyncio.sleep(5)
        await store.append_events("run_x", 1, [StoredEvent(1, 2, "task.started", 0.0, "t", {"tool": "work"})])
        await asyncio.sleep(5)
        await store.finish_run("run_x", 1, "failed", {"error": {"code": "node_lost", "message": "it died"}})

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(drive())
        await asyncio.sleep(0.1)
        stored = await store.load_run("run_x")
        assert stored is not None
        got = await everything(StoredFrames(stored, lambda: store.load_run("run_x")))
    assert types(got)[0] == "RUN_STARTED"
    check_segments(got)
    assert got[-1]["code"] == "node_lost"


async def test_all_who_follow_a_stored_run_share_their_looks_and_a_store_that_fails_is_silence():
    store = MemoryStore()
    await store.write([CreateRun(RunRecord("run_x", "a", {"input": "q"}, 0.0, 8.0, "elsewhere"))])
    loads = 0

    async def load(run: str, *, tenant: str | None) -> StoredRun | None:
        nonlocal loads
        loads += 1
        if loads < 5:
            raise StoreError("away")
        found: StoredRun | None = await store.load_run(run, tenant=tenant)
        return found

    looks = Looks(load)
    stored = await store.load_run("run_x")
    assert stored is not None
    frames = [StoredFrames(stored, looks.at(stored.record)) for _ in range(100)]
    async with asyncio.TaskGroup() as tasks:
        reading = [tasks.create_task(everything(one)) for one in frames]
        await asyncio.sleep(60)
        assert loads < 150
        await store.finish_run("run_x", 1, "failed", {"error": {"code": "node_lost", "message": "it died"}})
    assert {one.result()[-1]["code"] for one in reading} == {"node_lost"}
    assert len(looks._kept) == 1


# --- words ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "",
        "short",
        "第三季度，各地区的收入均有增长；其中华东地区增长最快，达到百分之十二。" * 20,
        "一" * 1000,
        "a" * 1000,
        "One sentence. Another one, with a comma, and more! " * 30,
        "e\u0301" * 300,
        "👨‍👩‍👧‍👦" * 100,
        "\u200d" * 500,
        "| a | b |\n|---|---|\n| 1 | 2 |\n" * 40,
    ],
)
def test_long_text_comes_in_pieces_that_are_the_text(text):
    found = list(pieces(text))
    assert "".join(found) == text
    assert all(found)
    assert max(map(len, found), default=0) <= 160
    assert len(found) >= len(text) / 160


def test_chinese_is_split_after_its_punctuation():
    text = "第三季度，各地区的收入均有增长，其中华东地区增长最快，达到百分之十二。华北地区次之，为百分之九；" * 5
    found = list(pieces(text))
    assert len(found) >= 8
    assert all(one[-1] in "。；，" for one in found)
    assert not any(one.startswith(("\u0301", "\u200d")) for one in pieces("e\u0301" * 300))


def test_what_was_said_while_it_was_made_is_not_said_again():
    projection = Projection("run_1")
    raw = b"".join(
        projection.frames(Event(kind, 0.0, None, "run_1", None, None, seq, 1, data), None)
        for seq, (kind, data) in enumerate(
            [
                ("run.received", {}),
                ("text.delta", {"text": "Half of "}),
                ("text.delta", {"text": "it"}),
                ("run.degraded", {"answer": "Half of it, and a note."}),
            ],
            1,
        )
    )
    events = told(raw)
    check_segments(events)
    said = "".join(event["delta"] for event in events if event["type"] == "TEXT_MESSAGE_CONTENT")
    assert said == "Half of it, and a note."
