"""Secrets reach neither the file nor the log."""

import asyncio
import json
import logging

import pytest

from failsoft.base.redaction import NAMES, REDACTED, RedactingFilter, Redactor
from failsoft.stores.approvals import ApprovalRecord
from failsoft.stores.protocols import FinishRun, RunRecord, StoredEvent, TaskRecord
from failsoft.stores.sqlite import SqliteStore

SECRETS = [
    "sk-abcdefghijklmnop0123",
    "ghp_abcdefghijklmnopqrstu",
    "AKIAABCDEFGHIJKLMNOP",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.sig_part",
    "Bearer abcdef0123456789",
]


@pytest.mark.parametrize("secret", SECRETS)
def test_what_looks_like_a_secret_is_taken_out(secret):
    redactor = Redactor()
    assert secret not in redactor.text(f"called with {secret} and failed")
    clean = json.loads(redactor.json(json.dumps({"a": [f"x {secret} y", 1]})))
    assert clean == {"a": [f"x {REDACTED} y", 1]}


@pytest.mark.parametrize("name", ["Authorization", "x-api-key", "API_KEY", "apiKey", "Set-Cookie", "client_secret"])
def test_what_stands_under_a_secrets_name_is_taken_out(name):
    redactor = Redactor()
    text = json.dumps({name: 'short "quoted" \\', "n": {name: "é", "keep": "this"}})
    assert json.loads(redactor.json(text)) == {name: REDACTED, "n": {name: REDACTED, "keep": "this"}}
    assert redactor.text(f"{name}: hunter2 keep") == f"{name}: {REDACTED} keep"


@pytest.mark.parametrize("name", NAMES)
def test_no_name_is_passed_over_by_the_quick_look(name):
    redactor = Redactor()
    for spelling in (name, name.replace("-", "_").upper(), name.title().replace("-", "")):
        assert json.loads(redactor.json(json.dumps({spelling: "hunter2"}))) == {spelling: REDACTED}


def test_what_is_no_secret_stays():
    redactor = Redactor()
    innocent = {"tokens": 12, "secretary": "Ann", "text": "task-force, a bearer of news", "url": "http://a.b/c:d@e"}
    assert json.loads(redactor.json(json.dumps(innocent))) == innocent
    assert redactor.text("the password was wrong") == "the password was wrong"


def test_a_password_in_a_url_is_taken_out():
    assert Redactor().text("postgres://me:hunter2@db/x") == f"postgres://{REDACTED}@db/x"


def test_more_patterns_and_names_can_be_given():
    redactor = Redactor(patterns=[r"KD-\d+.*"], names=["patient-id"])
    clean = json.loads(redactor.json(json.dumps({"patientId": "7", "a": 'x KD-123 "y', "b": "z"})))
    assert clean == {"patientId": REDACTED, "a": f'x {REDACTED}"y', "b": "z"}


async def test_no_secret_reaches_the_file(tmp_path):
    path = tmp_path / "runs.db"
    store = SqliteStore(path)
    secret = SECRETS[0]
    request = {"input": f"use {secret}", "metadata": {"authorization": "Basic Zm9v"}}
    record = RunRecord("run_1", "a", request, 1.0, 8.0, "n")
    await store.create_run(record)
    await store.append_events("run_1", 1, [StoredEvent(1, 1, "k", 1.0, None, {"text": secret})])
    await store.finish_task("run_1", 1, TaskRecord("t", "completed", [secret], {"reason": secret}))
    await store.save_snapshot("run_1", 1, "planning", {"plan": {"tasks": [{"arguments": {"password": "hunter2"}}]}})
    approval = ApprovalRecord("apr_1", "run_1", "t", "t", {"api_key": "k-1"}, "h", "tool", 1.0, 9.0)
    await store.ask_approval("run_1", 1, approval)
    await store.write([FinishRun("run_1", 1, "completed", {"answer": f"it was {secret}"}, 2.0)])
    loaded = await store.load_run("run_1")
    assert loaded is not None
    assert loaded.result == {"answer": f"it was {REDACTED}"}
    # while it is open: closing takes files away
    raw = await asyncio.to_thread(lambda: b"".join(file.read_bytes() for file in tmp_path.iterdir()))
    await store.aclose()
    for needle in (secret, "Zm9v", "hunter2", "k-1"):
        assert needle.encode() not in raw
    assert b"it was" in raw


def test_no_secret_reaches_the_log(caplog):
    logger = logging.getLogger("test.redaction")
    handler = logging.Handler()
    seen: list[str] = []
    handler.emit = lambda record: seen.append(record.getMessage())
    handler.addFilter(RedactingFilter(Redactor()))
    logger.addHandler(handler)
    try:
        logger.error("called %s with %s", "u", SECRETS[0])
        logger.error("100 % sure")
    finally:
        logger.removeHandler(handler)
    assert seen == [f"called u with {REDACTED}", "100 % sure"]


def test_of_many_texts_each_is_cleaned_by_itself():
    texts = ['{"a": 1}', '{"password": "hunter2"}', '{"b": "sk-' + "x" * 20 + '"}', "null"]
    assert Redactor().jsons(texts) == [Redactor().json(text) for text in texts]
    assert Redactor().jsons(texts[:1]) == texts[:1]
    assert Redactor(patterns=[r"KD-\d+"]).jsons(['"KD-1"', "1"]) == [f'"{REDACTED}"', "1"]
