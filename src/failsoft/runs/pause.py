"""A run that waits for people: nothing of it runs, its deadline stands still, and it holds no place in any lane.

The questions are written before the run waits. From then on it is a background run, whoever asked for it: its client
has been told, and a restart changes nothing. It goes on with a budget of its own as soon as one question is resolved.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from failsoft.base.errors import FailsoftError, StoreConflict, StoreError
from failsoft.kernel.classify import as_error
from failsoft.runs.crew import within
from failsoft.runs.gate import ApprovalNeeded
from failsoft.runs.state import RunState
from failsoft.stores.approvals import ApprovalRecord

if TYPE_CHECKING:
    from failsoft.runs.run import Run

__all__ = ["ask_people", "pause", "wait_for_people"]

_WRITING: Final = 5.0
"""Seconds that the store has before a run waits all the same."""
_AT_ONCE: Final = 3600.0
"""Seconds after which a long wait looks at the clock again."""


async def ask_people(run: Run, needs: Sequence[ApprovalNeeded]) -> list[ApprovalRecord]:
    """Writes the questions and gives those that nobody has resolved yet.

    A question that cannot be written is none: its task fails for that reason.
    """
    gate, reviews = run.gate, run.parts.reviews
    assert gate is not None
    asked = []
    for need in needs:
        try:
            if reviews is None:
                raise StoreError("there is nobody to ask: approvals need a store")
            record = await reviews.ask(
                need, run=run.id, epoch=run.epoch, tenant=run.request.tenant, agent=run.agent.name
            )
        except Exception as error:  # noqa: BLE001 - whatever a store raises costs this task, not the run
            mapped: FailsoftError = as_error(error)
            gate.refused[need.key] = mapped
            run.fail_part("approvals", mapped)
        else:
            gate.know(record)
            if record.status == "pending":
                asked.append(record)
    return asked


async def pause(run: Run, asked: Sequence[ApprovalRecord]) -> bool:
    """Waits for people, with no clock running; False when the run is to end as expired."""
    loop = asyncio.get_running_loop()
    start = loop.time()
    spent = start - run.began
    run.kept = run.background = True
    if not run.cell.to(RunState.WAITING_APPROVAL):
        raise asyncio.CancelledError
    run.snapshot(RunState.WAITING_APPROVAL)
    await _detach(run)
    run.leave_lane()
    run.emit("run.waiting_approval", None, {"approvals": [record.to_dict() for record in asked]})
    goes_on = await wait_for_people(run)
    run.spent("waiting", loop.time() - start)
    if goes_on:
        await run.turn()
    run.set_clock(run.parts.limits.resume_budget or run.budget, spent=spent)
    return goes_on


async def _detach(run: Run) -> None:
    """From now on the run may be taken over; the store is told before anybody else."""
    parts = run.parts
    if run.gate is not None:
        run.gate.may_call = parts.may_call
    if parts.store is None:
        return
    try:
        await run.flush()
        await within(
            parts.crew,
            parts.store.detach_run(run.id, run.epoch),
            at=asyncio.get_running_loop().time() + _WRITING,
            what="writing that the run waits",
            run=run.id,
        )
    except StoreConflict as error:  # it is another's by now
        run.leave()
        raise asyncio.CancelledError from error
    except Exception as error:  # noqa: BLE001 - whatever a store raises costs no run its answer
        run.fail_part("store", error)


async def wait_for_people(run: Run) -> bool:
    """Waits until something that was asked is resolved; False when the run is to end as expired.

    It is when time ran out for something essential and nothing else is left to wait for.
    """
    gate, reviews = run.gate, run.parts.reviews
    assert gate is not None
    assert reviews is not None
    loop = asyncio.get_running_loop()
    until = {record.id: loop.time() + record.expires - run.parts.sources.wall() for record in gate.pending}
    before = {record.id for record in gate.pending}
    while True:
        run.wake.clear()
        now = loop.time()
        for record in gate.pending:
            if until.setdefault(record.id, now + record.expires - run.parts.sources.wall()) <= now:
                await _expire(run, record)
        resolved = [record for record in gate.approvals.values() if record.id in before and record.status != "pending"]
        if any(record.status in {"approved", "rejected", "withdrawn"} for record in resolved):
            return True
        if not gate.pending:
            return not any(_ends_it(run, record.task) for record in resolved)
        left = min(until[record.id] for record in gate.pending) - loop.time()
        try:
            async with asyncio.timeout(max(0.0, min(left, _AT_ONCE))):
                await run.wake.wait()
        except TimeoutError:
            continue


def _ends_it(run: Run, task: str) -> bool:
    """Whether a run can make nothing of it that the time for a task's question ran out."""
    assert run.gate is not None
    whole, item, _ = task.partition("[")
    others = [one.status for one in run.gate.approvals.values() if item and one.task.startswith(f"{whole}[")]
    return run.essential(task) and all(status == "expired" for status in others)


async def _expire(run: Run, record: ApprovalRecord) -> None:
    reviews = run.parts.reviews
    assert reviews is not None
    try:
        resolved = await reviews.expire(record)
    except FailsoftError as error:  # the store is away: nobody can approve there either
        run.fail_part("approvals", error)
        resolved = replace(record, status="expired", resolved=run.parts.sources.wall())
    run.learn(resolved)
