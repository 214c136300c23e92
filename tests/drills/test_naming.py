"""Diagnosis under drill: how many of the degraded runs name the downstream that was injected, and as what."""

import asyncio
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from failsoft.drills.backends import Backend
from failsoft.drills.load import Arrival, arrivals, drive
from failsoft.drills.platforms import FailsoftPlatform
from failsoft.drills.requests import RequestMaker
from failsoft.drills.scenario import Scenario, load_scenario
from failsoft.telemetry.diagnosis import Diagnosis

pytestmark = pytest.mark.timeout(60)  # seconds of load in simulated time, on whatever machine
A2 = load_scenario(Path(__file__).parents[2] / "scenarios" / "A2.yaml")
NAMES = ("search", "knowledge", "prices", "charts")


async def diagnosed(scenario: Scenario, seed: int) -> tuple[str, list[Diagnosis]]:
    """The injected downstream, and the diagnoses of the runs that a drill's load left degraded."""
    maker = RequestMaker(scenario, seed)
    assert maker.faulted is not None
    backends = {name: Backend(name, spec, seed, {}) for name, spec in scenario.downstreams.items()}
    async with FailsoftPlatform(scenario, backends, seed) as platform:
        for index, fault in enumerate(scenario.faults):
            backends[maker.faulted].inject(fault.made(), Random(f"{seed}/fault/{index}"))

        async def client(arrival: Arrival, due: float) -> None:
            await platform.ask(maker.make(arrival.number))

        loop = asyncio.get_running_loop()
        planned = arrivals(scenario.load, Random(f"{seed}/load"))
        await drive(planned, client, most=scenario.load.most, began=loop.time(), now=loop.time)
        ended = [(handle, handle.result_now()) for handle in platform.app.known_runs()]
        degraded = [platform.app.diagnosis(handle) for handle, one in ended if one and one.status == "degraded"]
    for backend in backends.values():
        await backend.aclose()
    return maker.faulted, degraded


def a2(**settings: Any) -> Scenario:
    """A2 at its highest stage, shorter."""
    each = {**A2.settings["downstreams"]["each"], **settings}
    highest = A2.load.stages[-1].model_copy(update={"lasting": 5.0})
    load = A2.load.model_copy(update={"warmup": 1.0, "stages": (highest,)})
    return A2.model_copy(update={"settings": {"downstreams": {"each": each}}, "load": load})


def named(faulted: str, degraded: list[Diagnosis]) -> tuple[float, Counter[str]]:
    """The share of diagnoses that name it, and what those say it was."""
    right = [one for one in degraded if one.downstream == faulted]
    return len(right) / len(degraded), Counter(one.nature for one in right)


async def test_one_call_in_twenty_that_is_20_s_slower_is_named_and_called_slow():
    faulted, degraded = await diagnosed(a2(hedge=None), 1)  # hedged, hardly a run is degraded
    share, natures = named(faulted, degraded)
    assert len(degraded) >= 10
    assert share >= 0.95, [one.cause for one in degraded if one.downstream != faulted]
    assert natures["slow"] / natures.total() >= 0.95, natures


async def test_a_starved_pool_is_named_and_called_blocked():
    seed = 2
    faulted = RequestMaker(a2(), seed).faulted
    base = a2(hedge=None)
    sections = dict.fromkeys(NAMES, base.settings["downstreams"]["each"])
    starved = {**sections[faulted], "permits": 1, "queue": 8}  # 60 calls a second of 25 ms need one and a half
    one = base.model_copy(update={"faults": (), "settings": {"downstreams": {**sections, faulted: starved}}})
    found, degraded = await diagnosed(one, seed)
    assert found == faulted
    share, natures = named(faulted, degraded)
    assert len(degraded) >= 50
    assert share >= 0.95, [one.cause for one in degraded if one.downstream != faulted]
    assert natures["blocked"] / natures.total() >= 0.95, natures
