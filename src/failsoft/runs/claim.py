"""Whose an idempotency key is: a new run's, or one's that another process drives, has ended, or has lost.

Only here does a run wait for the store before it goes on, and only for a bounded time: a store that fails costs the
promise of one run for one key between processes, never the answer.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from failsoft.base.errors import FailsoftError, StoreConflict, StoreError
from failsoft.runs.crew import within
from failsoft.runs.limits import RunParts
from failsoft.stores.protocols import RunRecord, RunStore, StoredRun

__all__ = ["Claimed", "RunElsewhere", "claim"]

_SKEW: Final = 5.0
"""Seconds by which the clocks of two processes may differ, and a run may be late with its end."""
_PAUSES: Final = (0.05, 0.5)
"""Seconds between two looks at a run elsewhere: the first, doubled up to the last."""


class RunElsewhere(FailsoftError):
    """A run of the same `Idempotency-Key` still runs in another process, and did not end in this request's time."""

    type = "conflict"
    code = "run_elsewhere"
    status = 409
    retryable = True


@dataclass(frozen=True, slots=True)
class Claimed:
    """The run to be, under its id and epoch; ``ended`` when it has ended before, elsewhere."""

    run: str
    epoch: int
    ended: StoredRun | None = None


async def claim(record: RunRecord, store: RunStore, parts: RunParts, *, cut: float, certain: bool = False) -> Claimed:
    """Claims the record's key, if it has one, by `cut` (loop time) at the latest.

    A key's run that runs elsewhere is waited for; one whose time was over long ago without an end was lost with its
    process and is taken over. Raises :class:`~failsoft.base.errors.IdempotencyConflict` when the body differs, and
    :class:`RunElsewhere`. What the store raises is noted with the recorder, and the run is a new one; when it must be
    `certain` that the run is written, it is raised as a :class:`~failsoft.base.errors.StoreError`.
    """
    loop = asyncio.get_running_loop()

    def limit() -> float:
        """Each wait for the store is short, and together they leave time for the answer."""
        now = loop.time()
        return now + max(0.0, min(parts.limits.store_wait, (cut - now) / 4))

    mine = Claimed(record.run, 1)
    pause = _PAUSES[0]
    try:
        created = await within(
            parts.crew,
            store.create_run(record),
            at=limit(),
            what="accepting the run in the store",
            patience=parts.limits.patience,
            run=record.run,
        )
        if not created.existing:
            return mine
        while True:
            found = await within(
                parts.crew,
                store.load_run(created.run, tenant=record.tenant),
                at=limit(),
                what="reading the key's run",
                patience=parts.limits.patience,
                run=record.run,
            )
            if found is None:
                raise StoreConflict("the run of this Idempotency-Key is gone", run_id=created.run)
            if found.terminal is not None:
                return Claimed(created.run, found.epoch, found)
            known = found.record
            if not known.background and parts.sources.wall() > known.created + known.budget + _SKEW:
                with suppress(StoreConflict):  # somebody else was faster, or it has ended after all
                    epoch = await within(
                        parts.crew,
                        store.acquire(created.run, parts.node, expected=found.epoch),
                        at=limit(),
                        what="taking over the key's run",
                        patience=parts.limits.patience,
                        run=record.run,
                    )
                    return Claimed(created.run, epoch)
            if loop.time() + pause >= cut:
                raise RunElsewhere(
                    "the run of this Idempotency-Key still runs in another process",
                    param="Idempotency-Key",
                    run_id=created.run,
                    retry_after=1.0,
                )
            await asyncio.sleep(pause)
            pause = min(2 * pause, _PAUSES[1])
    except FailsoftError as error:
        if error.type == "conflict":
            raise
        _note(record.run, error, parts, certain=certain)
    except Exception as error:  # noqa: BLE001 - whatever a store raises costs no run its answer
        _note(record.run, error, parts, certain=certain)
    return mine


def _note(run: str, error: Exception, parts: RunParts, *, certain: bool) -> None:
    assert parts.recorder is not None
    mapped = parts.recorder.note(run, error)
    if certain:
        text = f"the run could not be written to the store, so it is not accepted: {mapped.message}"
        raise StoreError(text, run_id=run, retry_after=1.0) from error
