"""docs/kernel.md: its examples run by themselves and print what is shown, its tables say what the code says."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from failsoft.kernel.breaker import BreakerState
from failsoft.kernel.breaker_policy import breaker_preset
from failsoft.kernel.policy import preset

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/kernel.md"
TEXT = PAGE.read_text() if PAGE.exists() else ""
EXAMPLES = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
SHOWN = dict(re.findall(r"^```python\n((?:(?!```).*\n)*)```\n\n```text\n((?:(?!```).*\n)*)```", TEXT, re.MULTILINE))


def table(rows):
    head, *rest = rows
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ["---"] * len(head), *rest))


def figure(value):
    return "–" if value is None else f"{value:g}"


def share(value):
    return "–" if value is None else f"{value:.0%}".replace("%", " %")


def breaker_table():
    """The presets of breakers, as the page shows them."""
    rows = [["", "window", "minimum", "failures", "failed", "slow", "mean", "p99", "time-outs in a row"]]
    rows[0] += ["failures in a row", "open for", "probes", "ramp"]
    for name in ("A", "B", "C", "D", "E", "strict", "patient"):
        it = breaker_preset(name)
        row = [f"`{name}`", figure(it.window), figure(it.minimum), figure(it.failures), share(it.failure_ratio)]
        row += ["–" if it.slow_ratio is None else f"{share(it.slow_ratio)} over {it.slow_threshold:g}"]
        row += [figure(it.mean), figure(it.p99), figure(it.consecutive_timeouts), figure(it.consecutive_failures)]
        row += [f"{it.open_for:g} to {it.open_max:g}", f"{it.close_after} good, {it.probes} at once", figure(it.ramp)]
        rows.append(row)
    return table(rows)


def policy_table():
    """The presets of policies, as the page shows them."""
    rows = [["", "kind", "call limit", "attempt limit", "permits", "queue", "retries of a query", "breaker"]]
    for name in ("core", "data", "auxiliary", "external", "model"):
        it = preset(name)
        learned, adaptive = it.adaptive_timeout, it.bulkhead.adaptive
        limit = f"learned, {learned.floor:g} to {learned.cap:g} s" if learned else figure(it.attempt_timeout)
        permits = f"adaptive, {adaptive.minimum} to {adaptive.maximum}" if adaptive else str(it.bulkhead.permits)
        breaker = next(n for n in ("strict", "B", "patient", "E") if like(it.breaker, breaker_preset(n)))
        row = [f"`{name}`", it.kind, f"{it.call_timeout:g} s", limit, permits, str(it.bulkhead.queue)]
        rows.append([*row, str(it.retry.queries), f"`{breaker}`" + (" without p99" if breaker == "E" else "")])
    return table(rows)


def like(one, other):
    return all(getattr(one, key) == getattr(other, key) for key in one.__slots__ if key != "p99")


# Each example is the main program of a process of its own; what all of them import was loaded before they parted.
PARTING = """
import asyncio, json, os, signal, sys, tempfile
import failsoft.kernel, failsoft.testing.clock

def parted(example, out, err):
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.dup2(out.fileno(), 1)
    os.dup2(err.fileno(), 2)
    signal.alarm(15)  # most take no time at all
    code = 1
    try:
        exec(compile(example, "example", "exec"), {"__name__": "__main__"})
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

def ran(example):
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        code = parted(example, out, err)
        return [code, *(file.seek(0) or file.read().decode() for file in (out, err))]

json.dump([ran(example) for example in json.load(sys.stdin)], sys.stdout)
"""


@pytest.fixture(scope="module")
def ran():
    """Exit code, output and errors of every example."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PARTING],
        input=json.dumps(EXAMPLES),
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(EXAMPLES, json.loads(done.stdout), strict=True))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_an_example_runs_and_prints_what_is_shown(ran, example):
    code, out, err = ran[example]
    assert code == 0, err
    assert out == SHOWN[example]


def test_the_tables_of_presets_say_what_the_code_says():
    assert breaker_table() in TEXT
    assert policy_table() in TEXT


def test_the_table_of_events_has_every_kind_that_the_kernel_emits():
    source = "".join(path.read_text() for path in sorted((ROOT / "src/failsoft/kernel").glob("*.py")))
    kinds = set(re.findall(r"(?:(?:emit|Event|_new)\(\s*(?:Event,\s*\()?|told = \()\"([a-z_]+\.[a-z_]+)\"", source))
    kinds |= {f"breaker.{state}" for state in BreakerState}
    rows = re.findall(r"^\| ((?:`[a-z_]+\.[a-z_]+`(?:, )?)+) \|", TEXT, re.MULTILINE)
    shown = set(re.findall(r"`([a-z_.]+)`", " ".join(rows)))
    assert len(kinds) >= 10
    assert kinds == shown
