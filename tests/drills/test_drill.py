"""Drills: load that is sent when it is due, answers that are judged against known data, arms, goals, the command."""

import asyncio
import itertools
import json
import math
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from failsoft.base.errors import BadInput
from failsoft.drills.arm import run_arm
from failsoft.drills.backends import Backend, known_value
from failsoft.drills.load import arrivals, drive
from failsoft.drills.proof import proof_page
from failsoft.drills.requests import Reply, RequestMaker, faulted_of, judged, parsed
from failsoft.drills.samples import Measured, Sample, figures, quantile
from failsoft.drills.scenario import BackendSpec, LoadSpec, Scenario, Stage, load_scenario
from failsoft.drills.toxics import Delay, Hang
from failsoft.drills.verdict import verdict

ROOT = Path(__file__).parents[2]

SMALL = {
    "id": "small",
    "downstreams": {name: {"median": 0.03} for name in ("search", "prices", "charts", "archive")},
    "faulted": ["search", "prices"],
    "runs": [{"tasks": [{"use": "faulted"}, {"use": "other"}, {"use": "other", "needs": ["t0", "t1"]}]}],
    "settings": {"downstreams": {"each": {"preset": "data", "attempt_timeout": 0.2, "retries": 0}}},
    "load": {"warmup": 2.0, "stages": [{"rate": 10, "for": 5.0}], "clients": {"budget": 2.0}},
    "faults": [{"on": "faulted", "toxic": "hang"}],
    "goals": [{"name": "errors", "value": "failsoft.error_rate", "at_most": 0}],
}


def scenario(**changes) -> Scenario:
    return Scenario.model_validate({**SMALL, **changes})


# --- load -------------------------------------------------------------------------------------------------------------


def load(**changes) -> LoadSpec:
    return LoadSpec.model_validate({"stages": [{"rate": 10, "for": 5}, {"rate": 100, "for": 5}], **changes})


def test_constant_arrivals_come_in_step_the_warm_up_first():
    planned = list(arrivals(load(arrivals="constant", warmup=2.0), Random(1)))
    assert [one.at for one in planned[:3]] == pytest.approx([0.1, 0.2, 0.3])
    assert {one.stage for one in planned if one.at < 2.0} == {-1}
    assert 480 <= sum(one.stage == 1 for one in planned) <= 500


def test_poisson_arrivals_have_the_rate_and_repeat_with_the_seed():
    one, other = (list(arrivals(load(), Random(4))) for _ in range(2))
    assert one == other
    gaps = [b.at - a.at for a, b in itertools.pairwise(one) if a.stage == b.stage == 1]
    mean = sum(gaps) / len(gaps)
    deviation = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps))
    assert mean == pytest.approx(0.01, rel=0.15)
    assert deviation == pytest.approx(mean, rel=0.2)


async def test_the_loop_is_open_requests_go_out_while_none_is_answered():
    seen = []

    async def send(arrival, due):
        seen.append(asyncio.get_running_loop().time() - due)
        await asyncio.sleep(100)

    sent = await drive(arrivals(load(arrivals="constant", warmup=0.0), Random(1)), send, most=1000, began=5.0)
    assert len(seen) == len(sent.lateness) > 500
    assert max(seen) < 1e-9


async def test_what_does_not_fit_is_counted_and_a_defect_ends_it():
    async def send(arrival, due):
        await asyncio.sleep(100)

    sent = await drive(arrivals(load(warmup=0.0), Random(1)), send, most=10, began=0.0)
    assert sent.unsent > 400

    async def broken(arrival, due):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await drive(arrivals(load(), Random(1)), broken, most=10, began=0.0)


# --- downstreams ------------------------------------------------------------------------------------------------------


async def test_the_same_question_meets_the_same_luck_and_another_try_another():
    took = []
    for _ in range(2):
        backend = Backend("d", BackendSpec(median=0.1, sigma=0.5), 7, {})
        for key in (1, 2, 1):
            began = asyncio.get_running_loop().time()
            assert await backend.query(key) == known_value("d", key)
            took.append(round(asyncio.get_running_loop().time() - began, 9))
    assert took[:3] == took[3:]
    assert len(set(took)) == 3


async def test_capacity_queues_and_whoever_leaves_the_queue_is_forgotten():
    backend = Backend("d", BackendSpec(median=1.0, sigma=0.0, capacity=1), 1, {})
    first, second, third = (asyncio.ensure_future(backend.query(key)) for key in range(3))
    await asyncio.sleep(0.5)
    assert backend.queued == 2
    second.cancel()
    await asyncio.wait([first, second, third])
    assert asyncio.get_running_loop().time() == pytest.approx(2.0)
    assert (backend.queued, backend.in_flight) == (0, 0)


async def test_one_that_does_not_heed_works_on_for_nobody():
    backend = Backend("d", BackendSpec(median=1.0, sigma=0.0, capacity=1, heeds=False), 1, {})
    first = asyncio.ensure_future(backend.query(1))
    await asyncio.sleep(0.1)
    first.cancel()
    await asyncio.sleep(0)
    await backend.query(2)
    assert asyncio.get_running_loop().time() == pytest.approx(2.0)


async def test_faults_strike_and_end():
    backend = Backend("d", BackendSpec(median=1.0, sigma=0.0), 1, {})
    backend.inject(Delay(2.0), Random(1))
    backend.inject(Hang(), Random(1))
    asyncio.get_running_loop().call_later(10.0, backend.heal)
    await backend.query(1)
    assert asyncio.get_running_loop().time() == pytest.approx(11.0)
    await backend.query(1)
    assert asyncio.get_running_loop().time() == pytest.approx(12.0)


async def test_calls_past_their_clients_deadline_are_counted():
    ledger = {1: 0.5, 2: 5.0}
    backend = Backend("d", BackendSpec(median=1.0, sigma=0.0), 1, ledger)
    await backend.query(2)
    await backend.query(1)
    assert (backend.late_started, backend.late_ended) == (1, 1)


# --- requests and judgement -------------------------------------------------------------------------------------------


def test_the_question_says_what_it_needs():
    request = RequestMaker(scenario(), 3).make(5)
    assert request.uses
    assert parsed(request.text) == request.parts
    assert request.parts[2].needs == ("t0", "t1")
    assert len({part.use for part in request.parts}) == 3
    assert len(request.text) < 300


def test_the_seed_draws_the_faulted_downstream():
    drawn = {faulted_of(scenario(), seed) for seed in range(20)}
    assert drawn == {"search", "prices"}


def test_judgement():
    request = RequestMaker(scenario(), 1).make(1)
    bad = request.parts[0].use
    values = {part.id: known_value(part.use, part.key) for part in request.parts}
    assert judged(request, Reply("completed", values), bad) == ("complete", 3)
    lacking = {name: value for name, value in values.items() if name != "t0"}
    assert judged(request, Reply("degraded", lacking), bad) == ("degraded", 2)
    assert judged(request, Reply("completed", lacking), bad) == ("error", 2)
    assert judged(request, Reply("degraded", {"t0": values["t0"]}), bad) == ("error", 1)
    assert judged(request, Reply("degraded", {**values, "t1": {"wrong": 1}}), bad) == ("error", 2)
    assert judged(request, Reply("failed", {}), bad) == ("error", 0)


def test_figures():
    samples = [
        Sample(0, n / 1000, outcome, "", 0, "k", "", "normal", True, 2 if outcome == "degraded" else 3, 3)
        for n, outcome in zip(range(1, 101), ["complete"] * 98 + ["degraded", "error"], strict=True)
    ]
    found = figures(samples)
    assert (found["p50_ms"], found["p95_ms"], found["p99_ms"]) == (50.0, 95.0, 99.0)
    assert (found["error_rate"], found["degraded_rate"]) == (0.01, 0.01)
    assert found["completeness"] == pytest.approx(299 / 300)
    assert math.isnan(quantile([], 0.5))


# --- arms -------------------------------------------------------------------------------------------------------------


async def test_failsoft_degrades_where_the_baseline_fails():
    one = scenario(baseline={"permits": 10, "limit": 5.0})
    arms = {}
    for arm in ("healthy", "baseline", "failsoft"):
        (arms[arm],) = await run_arm(one, arm, 1)
    told = verdict(one, 1, arms)
    assert list(told) == ["id", "scale", "seed", "healthy", "baseline", "failsoft", "goals", "pass"]
    assert list(told["failsoft"]) == [
        "p50_ms", "p95_ms", "p99_ms", "error_rate", "degraded_rate", "completeness", "amplification"
    ]  # fmt: skip
    assert told["healthy"]["completeness"] == 1.0
    assert told["baseline"]["error_rate"] == 1.0
    assert (told["failsoft"]["error_rate"], told["failsoft"]["degraded_rate"]) == (0.0, 1.0)
    assert told["failsoft"]["completeness"] == pytest.approx(2 / 3, abs=0.001)
    assert told["goals"] == [{"name": "errors", "goal": "≤ 0", "value": 0.0, "pass": True}]
    assert told["pass"]
    assert arms["failsoft"].breakers[0][2] == "open"
    assert Measured.from_dict(json.loads(json.dumps(arms["failsoft"].to_dict()))) == arms["failsoft"]


async def test_paired_bare_calls_meet_the_same_luck():
    one = scenario(options={"paired": True}, faults=[])
    failsoft, bare = await run_arm(one, "failsoft", 1)
    assert (failsoft.arm, bare.arm) == ("failsoft", "healthy")
    both = list(zip(sorted(failsoft.samples), sorted(bare.samples), strict=True))
    assert max(abs(a.seconds - b.seconds) for a, b in both) < 1e-6  # in virtual time our own work takes none


async def test_clients_retry_and_leave():
    impatient = {**SMALL["load"], "clients": {"budget": 1.0, "patience": 0.01, "retries": 2, "pause": 0.5}}
    (measured,) = await run_arm(scenario(load=impatient, faults=[]), "failsoft", 1)
    assert {(one.outcome, one.code, one.attempts) for one in measured.samples} == {("error", "client_left", 3)}
    assert {round(one.seconds, 3) for one in measured.samples} == {1.03}


def test_load_that_was_late_voids_the_verdict():
    measured = Measured("failsoft", lateness=[0.02] * 100, unsent=3)
    told = verdict(scenario(), 1, {"failsoft": measured})
    assert not told["pass"]
    assert [goal["name"] for goal in told["goals"][1:]] == [
        "void: failsoft: load was sent late (p99, ms)",
        "void: failsoft: requests that could not be sent",
    ]


# --- files and the command --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", sorted((ROOT / "scenarios").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_scenario_is_sound(file):
    one = load_scenario(file)
    assert one.id == file.stem
    assert len(one.downstreams) >= 4 or one.kind != "agents"
    assert one.title
    assert one.before


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"faults": [{"on": "nowhere", "toxic": "hang"}]}, "there is no downstream 'nowhere'"),
        ({"faults": [{"on": "faulted", "toxic": "odd"}]}, "faults.0: unknown kind of toxic 'odd'"),
        ({"faulted": []}, "something is on `faulted`"),
        ({"goals": []}, "goals: "),
        ({"runs": [{"draw": 9}]}, "draws 9 of 4"),
        ({"loda": {}}, "loda: "),
    ],
)
def test_what_is_wrong_with_a_scenario_is_told_with_its_place(tmp_path, change, told):
    file = tmp_path / "x.yaml"
    file.write_text(json.dumps({**SMALL, **change}))
    with pytest.raises(BadInput, match=told):
        load_scenario(file)


def failsoft(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [Path(sys.executable).parent / "failsoft", "drill", *arguments],
        cwd=cwd, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip


@pytest.mark.deep
@pytest.mark.timeout(120)
def test_the_command_writes_lists_and_runs(tmp_path):
    pytest.importorskip("matplotlib")
    (tmp_path / "scenarios").mkdir()
    made = failsoft("new", "scenarios/mine.yaml", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    assert "there already" in failsoft("new", "scenarios/mine.yaml", cwd=tmp_path).stderr
    assert failsoft("list", cwd=tmp_path).stdout.startswith("mine ")
    file = tmp_path / "scenarios" / "mine.yaml"
    file.write_text(
        file.read_text().replace("{rate: 30, for: 10s}", "{rate: 6, for: 5s}").replace("warmup: 3s", "warmup: 1s")
    )
    ran = failsoft("run", "mine", "--virtual", "--json", "--seed", "3", "--report", "report.html", cwd=tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    told = json.loads(ran.stdout)
    assert (told["id"], told["seed"], told["pass"]) == ("mine", 3, True)
    page = (tmp_path / "report.html").read_text()
    assert "<svg" in page
    assert "p99 against healthy" in page
    assert "passed" in page


def test_the_proof_says_what_falls_short_what_was_simulated_and_what_was_not_run(tmp_path):
    figures = dict.fromkeys(
        ("p50_ms", "p95_ms", "p99_ms", "error_rate", "degraded_rate", "completeness", "amplification"), 0.5
    )
    for name in ("one", "two", "three"):
        (tmp_path / f"{name}.yaml").write_text(json.dumps({**SMALL, "id": name, "title": f"Scenario {name}"}))
    kept = tmp_path / "proof"
    kept.mkdir()

    def keep(name, *, passed, clock):
        goals = [{"name": "errors", "goal": "≤ 0", "value": 0.0 if passed else 0.25, "pass": passed}]
        arms = {"healthy": figures, "baseline": figures, "failsoft": figures}
        told = {"id": name, "scale": 2.0, "seed": 1, **arms, "goals": goals, "pass": passed, "clock": clock}
        (kept / f"{name}.json").write_text(json.dumps(told))

    keep("one", passed=False, clock="real")
    keep("two", passed=True, clock="simulated")
    text, passed = proof_page(tmp_path, kept)
    assert not passed
    assert "- **one**: errors: 0.25, wanted ≤ 0\n" in text
    assert "still to be measured in real time: two\n" in text
    assert "- Not run: three\n" in text
    for name in ("two", "three"):
        keep(name, passed=True, clock="real")
    keep("one", passed=True, clock="real")
    text, passed = proof_page(tmp_path, kept)
    assert passed
    assert "Nothing in this run." in text


def test_stage_needs_a_rate():
    with pytest.raises(ValueError, match="rate"):
        Stage.model_validate({"rate": 0, "for": 1})
