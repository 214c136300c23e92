"""What the outside does to a command: full disks, damaged caches, closed and narrow streams, signals at any moment."""

import contextlib
import io
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.conftest import SALES

from failsoft.cli import streams
from failsoft.cli.main import execute, main

pytestmark = pytest.mark.timeout(90)


@contextlib.contextmanager
def room_for(size: int) -> Iterator[None]:
    """No file can grow beyond `size`, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("size", [0, 20_000, 200_000])
def test_a_table_that_does_not_fit_on_the_disk_is_never_half_kept(sales, tmp_path, monkeypatch, capsys, size):
    """Closing a database writes what is left of it, and keeps quiet when it cannot."""
    cache = tmp_path / "cache"
    monkeypatch.setenv("FAILSOFT_CACHE_DIR", str(cache))
    sales.write_text(SALES + "".join(f"2024-10-0{i % 9 + 1},east,lamp,{i}\n" for i in range(30_000)))
    with room_for(size):
        assert execute(["ask", "--json", "--data", str(sales), "revenue per region"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["details"]["reason"], error["param"]) == ("not_kept", "data")
    assert "File too large" in error["message"]
    assert [path for path in cache.iterdir() if path.name.endswith((".duckdb", ".wal", ".part"))] == []


def test_a_damaged_database_is_loaded_anew(sales, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FAILSOFT_CACHE_DIR", str(tmp_path / "cache"))
    assert execute(["ask", "--json", "--data", str(sales), "revenue per region"]) == 0
    (database,) = (tmp_path / "cache").glob("*.duckdb")
    database.write_bytes(os.urandom(5000))
    capsys.readouterr()
    assert execute(["ask", "--json", "--data", str(sales), "revenue per region"]) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "completed"


def test_files_that_do_not_fit_leave_nothing_half_written(sales, tmp_path, capsys):
    out = tmp_path / "out"
    asking = ["ask", "--json", "--budget", "60", "--data", str(sales), "--out", str(out), "revenue per region"]
    assert execute(asking) == 0
    whole = {path.name: path.stat().st_size for path in out.iterdir()}
    assert set(whole) == {"chart.png", "report.html", "report.md"}
    for path in out.iterdir():
        path.unlink()
    capsys.readouterr()
    with room_for(max(whole.values()) - 1):
        assert execute(asking) == 2
    assert json.loads(capsys.readouterr().out)["error"]["param"] == "out"
    assert {path.name for path in out.iterdir()} < set(whole)


def ended(monkeypatch, stdout, *arguments) -> tuple[object, str]:
    """The exit code and standard error of a whole process' way, with another standard output."""
    monkeypatch.setattr(signal, "signal", lambda *_: signal.SIG_DFL)
    err = io.StringIO()
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", stdout)
        patched.setattr(sys, "stderr", err)
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        if stdout is None:
            sys.stdout.close()
    assert isinstance(caught.value.code, int)
    return caught.value.code, err.getvalue()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("form", [(), ("--json",)])
def test_an_output_that_cannot_be_written_is_one_line(sales, monkeypatch, form):
    asking = ("ask", *form, "--data", str(sales), "revenue per region")
    with Path("/dev/full").open("w") as full:
        assert ended(monkeypatch, full, *asking) == (1, "error: No space left on device\n")


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_an_output_that_nobody_takes_is_quiet(sales, monkeypatch, form):
    asking = ("ask", *form, "--data", str(sales), "revenue per region")
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as broken:
        assert ended(monkeypatch, broken, *asking) == (1, "")
    assert ended(monkeypatch, None, *asking) == (0, "")


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_an_encoding_that_lacks_characters_costs_no_answer(sales, monkeypatch, form):
    kept = io.BytesIO()
    with io.TextIOWrapper(kept, "ascii", write_through=True) as narrow:
        assert ended(monkeypatch, narrow, "ask", *form, "--data", str(sales), "各地区的 revenue") == (0, "")
        shown = kept.getvalue().decode("ascii")
    if form:
        assert "各地区" in json.loads(shown)["answer"]
    else:
        assert "\\u2026" in shown


def test_a_question_that_is_no_text_is_refused(sales, capsys):
    assert execute(["ask", "--data", str(sales), "revenue \udcff\udcfe per region"]) == 2
    assert capsys.readouterr().err == "error: the question is not text in the encoding of this terminal\n"


def test_nothing_in_a_table_or_a_question_gives_orders_to_the_terminal(tmp_path, capsys):
    file = tmp_path / "[bold] \x1b[2J.csv"
    file.write_text(SALES.replace("north", "\x1b]0;owned\x07no\u202erth"))
    assert execute(["ask", "--data", str(file), "revenue per region \x1b[31m"]) == 0
    shown = capsys.readouterr()
    assert not streams._COMMANDS.search(shown.out + shown.err)
    assert execute(["ask", "--data", "\x1b[2Jgone.csv", "revenue"]) == 2
    assert "\x1b" not in capsys.readouterr().err


@pytest.mark.deep
@pytest.mark.parametrize(
    ("verb", "one", "code"),
    [(("serve", "--port", "0"), signal.SIGTERM, 143), (("ask", "flights per month"), signal.SIGINT, 130)],
)
def test_a_signal_while_data_is_loaded_leaves_nothing_half_made(tmp_path, verb, one, code):
    cache, temporary = tmp_path / "cache", tmp_path / "temporary"
    temporary.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", "from failsoft.cli import main; main()", *verb, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "FAILSOFT_CACHE_DIR": str(cache), "TMPDIR": str(temporary)},
    )
    try:
        until = time.monotonic() + 60
        while not list(cache.glob("*.part")) and time.monotonic() < until:
            time.sleep(0.01)
        process.send_signal(one)
        told = process.communicate(timeout=30)
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, told) == (code, (b"", b""))
    assert [path for path in cache.rglob("*") if path.name.endswith((".part", ".wal", ".duckdb"))] == []
    assert list(temporary.iterdir()) == []
