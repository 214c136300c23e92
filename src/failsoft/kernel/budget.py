"""The retry budget: retries and hedges together may add only a small share to a downstream's load.

First attempts deposit ``ratio`` of a token, each extra attempt takes a whole one (Finagle's ``RetryBudget``; SRE
book, "Handling Overload": a 10 % per-client budget). A small reserve that refills with time lets rarely used
downstreams retry.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BudgetStatistics", "RetryBudget"]


@dataclass(frozen=True, slots=True)
class BudgetStatistics:
    """``tokens`` left now; extra attempts ``granted`` and ``refused`` since the start; ``deposits`` are first
    attempts.
    """

    tokens: float
    granted: int
    refused: int
    deposits: int


class RetryBudget:
    """Extra attempts ≤ ``ratio`` × first attempts + ``reserve`` + ``trickle`` × seconds.

    `ratio` is the share of extra load (0.1), `ceiling` the most tokens that can be saved, `reserve` what there is at
    the start and what the `trickle` (tokens a second) refills to.
    """

    __slots__ = (
        "_at",
        "_credited",
        "_granted",
        "_refused",
        "_tokens",
        "ceiling",
        "deposits",
        "ratio",
        "reserve",
        "trickle",
    )

    def __init__(
        self, *, ratio: float = 0.1, ceiling: float = 20.0, reserve: float = 3.0, trickle: float = 0.1
    ) -> None:
        if not (0 <= ratio <= 1 and 0 <= reserve <= ceiling and trickle >= 0):
            raise ValueError("needs 0 <= ratio <= 1, 0 <= reserve <= ceiling and trickle >= 0")
        self.ratio = ratio
        self.ceiling = ceiling
        self.reserve = reserve
        self.trickle = trickle
        self._tokens = reserve
        self._at: float | None = None
        self._granted = 0
        self._refused = 0
        self._credited = 0
        self.deposits = 0
        """First attempts so far: whoever starts one adds 1. What they earn is worked out when somebody asks."""

    def withdraw(self, now: float) -> bool:
        """Takes a token for an extra attempt; False when there is none (the first attempt is never harmed by that)."""
        self._refill(now)
        self._credit()
        if self._tokens < 1.0:
            self._refused += 1
            return False
        self._tokens -= 1.0
        self._granted += 1
        return True

    def refund(self) -> None:
        """Gives a token back that was taken for an attempt which then did not start."""
        self._tokens = min(self.ceiling, self._tokens + 1.0)
        self._granted -= 1

    def _credit(self) -> None:
        self._tokens = min(self.ceiling, self._tokens + (self.deposits - self._credited) * self.ratio)
        self._credited = self.deposits

    def _refill(self, now: float) -> None:
        if self._at is not None and now > self._at and self._tokens < self.reserve:
            self._tokens = min(self.reserve, self._tokens + (now - self._at) * self.trickle)
        self._at = now

    def statistics(self) -> BudgetStatistics:
        """Figures since the start."""
        self._credit()
        return BudgetStatistics(self._tokens, self._granted, self._refused, self.deposits)

    def __repr__(self) -> str:
        return f"<RetryBudget tokens={self._tokens:.1f} granted={self._granted} refused={self._refused}>"
