"""What can be seen of the downstreams from outside: breakers, permits, who waits, who holds, what was orphaned."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from failsoft.kernel.guard import Guard, Kernel

__all__ = ["downstream_view", "downstreams_view"]

HOLDERS = 100
"""Holders and waiters that are listed for each downstream, the oldest first."""


def downstreams_view(kernel: Kernel, tenant: str | None = None) -> dict[str, Any]:
    """Every downstream, by name; of other tenants' calls only that they are there, if it is for a `tenant`."""
    return {"downstreams": [downstream_view(kernel.guards[name], tenant) for name in sorted(kernel.guards)]}


def downstream_view(guard: Guard, tenant: str | None = None) -> dict[str, Any]:
    """One downstream as plain JSON data; times in seconds."""

    def shown(whose: str | None, value: str | None) -> str | None:
        return value if tenant is None or whose == tenant else None

    figures = asdict(guard.statistics())
    return {
        **{key: _finite(value) for key, value in figures.items()},
        "fault_injected": guard.interceptor is not None,
        "holders": [
            {
                "run": shown(holder.tenant, holder.run),
                "task": shown(holder.tenant, holder.task),
                "age_s": round(holder.age, 3),
                "limit": holder.limit,
                "orphan": holder.orphan,
                "where": shown(holder.tenant, holder.where),
            }
            for holder in guard.holders()[:HOLDERS]
        ],
        "waiters": [
            {
                "run": shown(waiter.tenant, waiter.run),
                "task": shown(waiter.tenant, waiter.task),
                "priority": waiter.priority,
                "age_s": round(waiter.age, 3),
                "remaining_s": _finite(round(waiter.remaining, 3)),
            }
            for waiter in guard.waiters()[:HOLDERS]
        ],
    }


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
