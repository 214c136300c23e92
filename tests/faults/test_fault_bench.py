"""The fault bench can fail: whatever a client must not be given is named."""

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace

import aiohttp
import pytest

from failsoft.testing.upstream import FakeUpstream

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture(scope="module")
def bench():
    sys.path.insert(0, str(BENCH))
    try:
        yield SimpleNamespace(faults=importlib.import_module("faults"), client=importlib.import_module("strict_client"))
    finally:
        sys.path.remove(str(BENCH))
        for name in ("faults", "strict_client"):
            sys.modules.pop(name, None)


def judged(bench, *, right="served", count=(1, 1), before=(0, 0), **reply):
    fault = bench.faults.Fault("any", right=right)
    made = bench.client.Reply(**{"status": 200, "seconds": 0.1, **reply})
    main, backup = SimpleNamespace(count=count[0]), SimpleNamespace(count=count[1])
    return bench.faults.judge(fault, made, main, backup, before)


def test_the_backups_whole_answer_and_a_clean_break_are_right(bench):
    assert not judged(bench, text=bench.faults.BACKUP, finish="stop")
    assert not judged(bench, stream=True, done=True, text=bench.faults.BACKUP, finish="stop")
    assert not judged(bench, stream=True, text="Only the main ", error={"code": "cut"})
    assert not judged(bench, right="refused", status=504, error={"code": "late"})
    assert not judged(bench, right="told", status=400, error={"code": "x"}, count=(1, 0))


@pytest.mark.parametrize(
    ("reply", "word"),
    [
        ({"text": "The backup has", "finish": "stop"}, "truncated"),
        ({"text": "Only the main route", "finish": "stop", "stream": True, "done": True}, "truncated"),
        ({"text": "Only the", "stream": True, "error": {"code": "cut"}, "done": True}, "says that it is complete"),
        ({"text": "Only the", "stream": True, "error": {"code": "cut"}, "finish": "stop"}, "says that it is complete"),
        ({"text": "Only the", "stream": True}, "neither"),
        ({"status": 502, "error": {"code": "x"}}, "did not serve"),
        ({"status": 200, "error": {"code": "x"}}, "under status 200"),
        ({"text": "So", "stream": True, "error": {"code": "cut"}}, "nobody said"),
        ({"status": 502, "error": {"code": "x"}, "seconds": 4.06}, "took"),
        ({"text": "", "finish": "stop", "count": (0, 1)}, "not asked"),
        ({"right": "refused", "text": "The", "finish": "stop"}, "nobody gave"),
        ({"right": "told", "status": 400, "error": {"code": "x"}}, "the backup was asked"),
        ({"right": "told", "status": 502, "error": {"code": "x"}, "count": (1, 0)}, "caller's fault"),
    ],
)
def test_what_is_wrong_is_named(bench, reply, word):
    assert any(word in one for one in judged(bench, **reply))


@pytest.mark.realtime
@pytest.mark.parametrize(
    ("fault", "stream", "word"),
    [
        ("no_finish_reason", True, None),
        ("no_done", True, "neither [DONE]"),
        ("bad_chunk", True, "no JSON"),
        ("error_in_stream", True, "after the end"),
        ("cut", True, "connection broke"),
        ("empty_200", True, "a stream of the type"),
        ("malformed_json", False, "no JSON"),
        ("no_choices", False, "no chat completion"),
        ("stall", True, "still no end"),
        ("ok", True, None),
        ("ok", False, None),
    ],
)
async def test_the_client_reads_strictly(bench, fault, stream, word):
    async with FakeUpstream() as upstream, aiohttp.ClientSession() as session:
        body = {"model": fault, "messages": [], "stream": stream}
        reply = await bench.client.ask(session, f"{upstream.base_url}/chat/completions", body, budget=0.2)
    assert reply.complete == (fault in {"ok", "bad_chunk"})  # it does not hide the chunk that it cannot read
    if word is None:
        assert not reply.problems
    else:
        assert any(word in one for one in reply.problems)
