"""What is kept and for how long, background runs, approvals, alarms, and what must not be kept."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from pydantic import SecretStr, field_validator

from failsoft.config.keys import Seconds, Section, key

__all__ = ["AlarmSettings", "ApprovalSettings", "BackgroundSettings", "RedactionSettings", "StoreSettings"]


class StoreSettings(Section):
    """Where runs, approvals and sessions are kept."""

    path: Path | None = key(
        None, "A SQLite file, made when it is not there; relative to this file. Default: in memory, gone with the "
        "process.", scope="process",
    )  # fmt: skip
    migrate: bool = key(
        False, "Bring the file of an older version up to date at the start; else it is refused.", scope="process"
    )
    synchronous: Literal["normal", "full"] = key(
        "normal", "`normal`: what was written survives the death of the process; `full`: of the machine, at the cost "
        "of a sync for each group.", scope="process",
    )  # fmt: skip
    keep_runs: Seconds = key(
        900.0, "How long a run can be looked up after its end; at least `run.maximum_budget` and 300 s.",
        scope="process", unit="seconds", ge=0,
    )  # fmt: skip
    keep_keys: Seconds = key(
        86_400.0, "How long after its end a run is given again for its `Idempotency-Key`.", scope="process",
        unit="seconds", ge=0,
    )  # fmt: skip
    keep_details: Seconds = key(
        900.0, "How long the tasks and events of a run are kept after its end.", scope="process", unit="seconds", ge=0
    )
    keep_sessions: Seconds = key(
        30 * 86_400.0, "How long the turns of a session are kept.", scope="process", unit="seconds", ge=0
    )
    prune_every: Seconds = key(
        60.0, "How often what was kept long enough is removed.", scope="process", unit="seconds", gt=0
    )


class BackgroundSettings(Section):
    """Runs that are answered later, in a lane of their own."""

    width: int = key(8, "Background runs at once.", scope="process", ge=1, le=10_000)
    queue: int = key(10_000, "Background runs that wait for their turn; more are refused.", scope="process", ge=0)
    tasks: int = key(4, "Tasks of one background run at once.", scope="run", ge=1)
    budget: Seconds = key(
        600.0, "Time a background run has from its turn on, when its caller names none.", scope="run", unit="seconds",
        gt=0,
    )  # fmt: skip
    maximum_budget: Seconds = key(
        3_600.0, "The longest budget of a background run; more is refused.", scope="run", unit="seconds", gt=0
    )
    lease: Seconds = key(
        15.0, "How long a process is believed to live without a word, before others go on with its runs.",
        scope="process", unit="seconds", ge=1,
    )  # fmt: skip
    clock_skew: Seconds = key(
        2.0, "How far the clocks of processes that share a store may differ.", scope="process", unit="seconds", ge=0
    )
    deaths: int = key(5, "After so many processes that died while they drove a run it is given up.", scope="run", ge=0)


class PagedSettings(Section):
    """Where whoever is on call is told."""

    webhook: str | None = key(
        None, "Where whoever is on call is told: an `https://` URL (`http://` for this machine).", scope="process"
    )
    webhook_secret: SecretStr | None = key(
        None, "What the webhook's messages are signed with, by `${NAME}` from the environment.", scope="process"
    )

    @field_validator("webhook")
    @classmethod
    def _url(cls, value: str | None) -> str | None:
        if value is not None and not re.match(r"https://|http://(localhost|127\.0\.0\.1|\[::1\])[:/]", value):
            raise ValueError("should be an https:// URL, or http:// on this machine")
        return value


class ApprovalSettings(PagedSettings):
    """Questions to people."""

    expires: Seconds = key(86_400.0, "How long a person has.", scope="run", unit="seconds", gt=0)
    resume_budget: Seconds | None = key(
        None, "Time a run has after it was approved. Default: its own budget, again.", scope="run", unit="seconds",
        gt=0,
    )  # fmt: skip
    after_degradations: int = key(
        0, "After so many degradations of a tool in a row a person is asked before another answer does without it; "
        "0: never.", scope="run", ge=0,
    )  # fmt: skip


class AlarmSettings(PagedSettings):
    """What happens when more runs run out of time than may: a diagnosis is made, logged, and told."""

    timed_out: float = key(
        0.005, "The share of an agent's runs that may run out of time; more, in the last 5 minutes and in the last "
        "hour, raise an alarm.", scope="process", gt=0, le=1,
    )  # fmt: skip
    diagnosis: Seconds = key(
        900.0, "Over how long a time the diagnosis that comes with an alarm looks.", scope="process", unit="seconds",
        gt=0, le=86_400,
    )  # fmt: skip


class RedactionSettings(Section):
    """What is taken out before anything is stored or logged, besides what is known to be secret."""

    patterns: tuple[str, ...] = key((), "Regular expressions of more secrets.", scope="process")
    names: tuple[str, ...] = key((), "Names of more headers and fields whose values are secrets.", scope="process")

    @field_validator("patterns")
    @classmethod
    def _compiles(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for one in value:
            try:
                re.compile(one)
            except re.error as error:
                raise ValueError(f"is no regular expression: {error}") from None
        return value
