"""Load: when requests are sent, and how the clients that send them behave.

The loop is open: requests come when they come, whether earlier ones were answered or not, and a request's time counts
from when it *should* have been sent. A generator that waits for answers sends less exactly when it matters
(coordinated omission).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Final

from failsoft.drills.scenario import LoadSpec

__all__ = ["LATE", "Arrival", "Sent", "arrivals", "drive"]

LATE: Final = 0.01
"""Seconds: load that is sent later than this (p99) says nothing about the system, and the verdict is void."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request to be sent ``at`` seconds after the start; ``stage`` is -1 in the warm-up."""

    number: int
    at: float
    stage: int


def arrivals(load: LoadSpec, rng: Random) -> Iterator[Arrival]:
    """The requests of a load, in order; the warm-up at the first stage's rate comes first."""
    number, began = 0, 0.0
    spans = [(-1, load.stages[0].rate, load.warmup)]
    spans += [(index, stage.rate, stage.lasting) for index, stage in enumerate(load.stages)]
    for stage, rate, lasting in spans:
        at = began
        while True:
            at += rng.expovariate(rate) if load.arrivals == "poisson" else 1.0 / rate
            if at >= began + lasting:
                break
            yield Arrival(number, at, stage)
            number += 1
        began += lasting


@dataclass
class Sent:
    """What became of the sending: how late each request was (seconds), and how many were not sent for want of room."""

    lateness: list[float]
    unsent: int = 0


async def drive(
    planned: Iterator[Arrival],
    send: Callable[[Arrival, float], Awaitable[None]],
    *,
    most: int,
    began: float,
    now: Callable[[], float] | None = None,
) -> Sent:
    """Sends each request at its time, `began` being the loop time of 0, and waits until all are answered.

    ``send(arrival, due)`` is one client; what it raises is raised here at the end. At most `most` are under way.
    `now` reads the time, by default the loop's (uvloop's stands still while callbacks run, and counts milliseconds).
    """
    loop = asyncio.get_running_loop()
    now = now or loop.time
    sent = Sent([])
    under_way: set[asyncio.Task[None]] = set()
    failed: list[BaseException] = []

    def ended(task: asyncio.Task[None]) -> None:
        under_way.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            failed.append(error)

    async def one(arrival: Arrival, due: float) -> None:
        await send(arrival, due)

    try:
        for arrival in planned:
            due = began + arrival.at
            wait = due - now()
            if wait > 0:
                await asyncio.sleep(wait)
            if failed:
                break
            if len(under_way) >= most:
                sent.unsent += 1
                continue
            if arrival.stage >= 0:
                sent.lateness.append(max(0.0, now() - due))
            task = loop.create_task(one(arrival, due))
            under_way.add(task)
            task.add_done_callback(ended)
        if under_way:
            await asyncio.wait(under_way)
    finally:
        for task in list(under_way):
            task.cancel()
        if under_way:
            await asyncio.wait(under_way)
    if failed:
        raise failed[0]
    return sent
