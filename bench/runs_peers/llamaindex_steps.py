"""LlamaIndex workflows: a chain of no-op steps, each sending the next event. Prints µs of CPU per step."""

import asyncio
import json
import statistics
import sys
import time

from workflows import Workflow, step
from workflows.events import Event, StartEvent, StopEvent

STEPS = int(sys.argv[1])


class Next(Event):
    n: int


class Chain(Workflow):
    @step
    async def first(self, event: StartEvent) -> Next:
        return Next(n=1)

    @step
    async def following(self, event: Next) -> Next | StopEvent:
        return StopEvent(result=event.n) if event.n >= STEPS else Next(n=event.n + 1)


async def main(rounds):
    found = []
    for _ in range(rounds + 1):
        start = time.process_time()
        assert await Chain(timeout=60).run() == STEPS
        found.append((time.process_time() - start) / STEPS)
    return {"llamaindex": statistics.median(found[1:]) * 1e6}


print(json.dumps(asyncio.run(main(int(sys.argv[2])))))
