"""What a task's or call's result carries with it: which rung served it, why, and how old it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, NamedTuple, TypeVar

__all__ = ["Kind", "Outcome", "Priority", "Provenance", "RungTried"]

T = TypeVar("T")

Kind = Literal["query", "action", "external"]
"""``query`` may be repeated; ``action`` changes something and never retries by itself; ``external``: breaker first,
no retry in place.
"""


class Priority:
    """How much a call matters: smaller is more important. ``NORMAL`` keeps a minimum share under overload."""

    CRITICAL = 0
    NORMAL = 1
    OPTIONAL = 2
    NAMES = ("critical", "normal", "optional")


@dataclass(frozen=True, slots=True)
class RungTried:
    """One rung of the ladder that did not serve: its name, the error's code and text, and what it cost in seconds."""

    rung: str
    code: str
    message: str = ""
    seconds: float = 0.0


class Provenance(NamedTuple):
    """Where a result came from.

    ``requested`` and ``served`` name the rung (usually a downstream or alternate) that was asked for and that answered;
    ``rung`` is its kind: ``primary``, ``alternate``, ``stale``, ``default``, ``rule``, ``skipped``, ``review``.
    ``reason`` is the code of the error that made the first rung fail, ``age`` seconds since the value was fresh,
    ``remaining`` the budget in seconds that was left when it was served, ``attempts`` the tries of the serving call.
    """

    requested: str
    served: str | None
    rung: str = "primary"
    reason: str | None = None
    age: float | None = None
    remaining: float | None = None
    attempts: int = 1
    equivalent: bool = True
    tried: tuple[RungTried, ...] = ()
    suspicious: bool = False
    truncated: bool = False

    @property
    def degraded(self) -> bool:
        """True when the result is missing, stale, truncated, suspicious or from a rung that is not equivalent."""
        return not self.equivalent or self.age is not None or self.truncated or self.suspicious or self.served is None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {
            "requested": self.requested,
            "served": self.served,
            "rung": self.rung,
            "reason": self.reason,
            "age_s": self.age,
            "remaining_s": self.remaining,
            "attempts": self.attempts,
            "degraded": self.degraded,
            "tried": [{"rung": r.rung, "code": r.code, "message": r.message, "seconds": r.seconds} for r in self.tried],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Provenance:
        """From what :meth:`to_dict` made, as far as that goes."""
        degraded = bool(data.get("degraded", False))
        age, served = data.get("age_s"), data.get("served")
        return cls(
            requested=data.get("requested", ""),
            served=served,
            rung=data.get("rung", "primary"),
            reason=data.get("reason"),
            age=age,
            remaining=data.get("remaining_s"),
            attempts=data.get("attempts", 1),
            equivalent=not degraded or age is not None,
            tried=tuple(RungTried(**one) for one in data.get("tried", ())),
        )


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """A value with its provenance. ``value`` is None when nothing could be served (``provenance.served is None``)."""

    value: T
    provenance: Provenance = field(default_factory=lambda: Provenance(requested="", served=""))

    @property
    def degraded(self) -> bool:
        """Whether the value is less than what was asked for."""
        return self.provenance.degraded
