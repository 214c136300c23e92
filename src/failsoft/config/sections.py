"""What can be set: one class per section of ``failsoft.yaml``, every key with its meaning, default, unit and scope.

Only keys that something reads are here; ``tests/config`` shows for each that it changes behaviour.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field, SecretStr, field_validator, model_validator

from failsoft.base.errors import ConfigError
from failsoft.config.access import KeySettings
from failsoft.config.downstreams import DownstreamSettings
from failsoft.config.durability import (
    AlarmSettings,
    ApprovalSettings,
    BackgroundSettings,
    RedactionSettings,
    StoreSettings,
)
from failsoft.config.keys import Seconds, Section, key
from failsoft.config.models import AliasSettings, GatewaySettings
from failsoft.config.profiles import profiled, profiled_alias
from failsoft.config.tools import ToolSettings
from failsoft.kernel.policy import Policy, preset
from failsoft.models.routes import Alias

if TYPE_CHECKING:
    from failsoft.runs.pace import PacePolicy

__all__ = ["ModelSettings", "OutsideSettings", "PaceSettings", "RunSettings", "ServerSettings", "Settings"]


class PaceSettings(Section):
    """When a run starts fewer tasks of one tool at once: all, half of them, one by one; and back."""

    window: Seconds = key(
        10.0, "How far back tasks are counted; half of it without a time-out is a step back up.", scope="process",
        unit="seconds", gt=0,
    )  # fmt: skip
    row: int = key(5, "Time-outs in a row that are a step down.", scope="process", ge=1)
    minimum: int = key(10, "Tasks in the window below which their share says nothing.", scope="process", ge=1)
    down: float = key(0.3, "The share of timed-out tasks that is a step down.", scope="process", gt=0, le=1)
    good: int = key(20, "Tasks in a row without a time-out that are a step up.", scope="process", ge=1)

    def policy(self) -> PacePolicy:
        """The pace as the scheduler takes it."""
        from failsoft.runs.pace import PacePolicy  # the gateway alone needs nothing of runs

        return PacePolicy(self.window, self.row, self.minimum, self.down, self.good)


class OutsideSettings(Section):
    """What stands in front of this server, as declared: nothing here may take longer than those outside wait."""

    client: Seconds | None = key(
        None, "How long clients wait before they give up. `run.budget` must be below it.", scope="run",
        unit="seconds", gt=0,
    )  # fmt: skip
    proxy: Seconds | None = key(
        None, "How long the proxy in front waits before it cuts. `outside.client` must not be above it.", scope="run",
        unit="seconds", gt=0,
    )  # fmt: skip


class RunSettings(Section):
    """What one run may spend and how it is planned."""

    budget: Seconds = key(
        8.0, "Time a run has, end to end, when its caller names none.", scope="run", unit="seconds", gt=0
    )
    maximum_budget: Seconds = key(
        120.0, "The longest budget that a caller may ask for; more is refused.", scope="run", unit="seconds", gt=0
    )
    planner: Literal["auto", "rules", "model"] = key(
        "auto",
        "Who makes the plan: `rules` (no model), `model`, or `auto`: the model when one is configured, else the rules.",
        scope="process",
    )
    chooser: str | None = key(
        None, "The model, by its name in `models`, that chooses the agent when a request names none and rules know "
        "none. Default: no model is asked.", scope="process", min_length=1,
    )  # fmt: skip
    max_question: int = key(
        10_000, "The longest question that is accepted.", scope="run", unit="characters", ge=1, le=1_000_000
    )
    task_timeout: Seconds | None = key(
        None, "Time that one task of a plan has at most, with its retries and alternates. Default: what the run has.",
        scope="run", unit="seconds", gt=0,
    )  # fmt: skip
    max_calls: int | None = key(
        None, "Tasks of one run, and items of its lists, that are begun at all. Default: all there are.", scope="run",
        ge=1,
    )  # fmt: skip
    grace_ceiling: float = key(
        0.125, "The largest share of a run's budget that is kept back for putting the answer together.", scope="run",
        gt=0, le=0.5,
    )  # fmt: skip
    grace_floor: Seconds = key(
        0.05, "The least time that is kept back for it; how much it is between the two is learned.", scope="run",
        unit="seconds",
    )  # fmt: skip
    planning_share: float = key(
        0.5, "The share of what is left of the budget that one planner may use.", scope="run", gt=0, le=1
    )
    max_runs: int = key(20_000, "Runs at once; more are refused.", scope="run", ge=1)
    pace: PaceSettings = Field(default_factory=PaceSettings, description="When a tool is started less wide.")

    @model_validator(mode="after")
    def _ordered(self) -> RunSettings:
        if self.budget > self.maximum_budget:
            raise ValueError("budget is over maximum_budget")
        return self


class ModelSettings(Section):
    """Any OpenAI-compatible endpoint for the `model` planner; without one everything works by rules."""

    base_url: str | None = key(
        None, "Where the endpoint is, up to and with `/v1`. Default: `OPENAI_BASE_URL`.", scope="process"
    )
    api_key: SecretStr | None = key(
        None,
        "The key, from the environment only: `OPENAI_API_KEY`, `FAILSOFT_MODEL__API_KEY`, or `${NAME}` in the file.",
        scope="process",
    )
    name: str | None = key(
        None, "The model that is asked for. Default: the first that the endpoint lists.", scope="process", min_length=1
    )
    narrative: bool = key(
        True, "Whether the model also tells in a few sentences what the tools found, each number checked.",
        scope="process",
    )  # fmt: skip
    first_token: Seconds = key(
        10.0, "How long its first token may take; a small machine reads a first prompt slowly.", scope="process",
        unit="seconds", gt=0,
    )  # fmt: skip


class ServerSettings(Section):
    """The HTTP server."""

    host: str = key("127.0.0.1", "The address to listen on.", scope="process", min_length=1)
    port: int = key(8080, "The port to listen on; 0 takes a free one.", scope="process", ge=0, le=65535)
    max_body: int = key(
        65_536, "The largest request body; more is answered 413 unread.", scope="process", unit="bytes", ge=1024
    )
    max_headers: int = key(
        32_768, "The largest request line with headers; more is answered 431.", scope="process", unit="bytes", ge=1024
    )
    heartbeat: Seconds = key(
        10.0, "How often a silent event stream sends a comment, so that proxies keep it.", scope="process",
        unit="seconds", gt=0,
    )  # fmt: skip
    log: Literal["stderr", "stdout", "off"] = key(
        "stderr",
        "Where the lines of runs and of their calls go: one JSON object for each, without what was asked or said.",
        scope="process",
    )
    write_timeout: Seconds = key(
        30.0, "How long a client may leave an event stream unread before it is cut off.", scope="process",
        unit="seconds", gt=0,
    )  # fmt: skip
    drain: Seconds = key(
        10.0, "How long running requests may finish after SIGTERM before they are cancelled.", scope="process",
        unit="seconds",
    )  # fmt: skip
    peers: tuple[str, ...] = key(
        (), "The other processes of this service, by their base URLs: `/metrics` then answers for all of them, and "
        "`/metrics?own=1` for one.", scope="process",
    )  # fmt: skip
    on_disconnect: Literal["cancel", "continue"] = key(
        "cancel", "What happens to a run whose client has gone; a request may say otherwise.", scope="run"
    )

    @field_validator("peers")
    @classmethod
    def _urls(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for one in value:
            if not re.fullmatch(r"https?://[^\s/?#@]+/?", one):
                raise ValueError(f"{one!r} should be the base URL of a process, like http://10.0.0.7:8080")
        return value


class Settings(Section):
    """All of ``failsoft.yaml``."""

    agent: str = key("analyst", "The agent that answers when a request names none.", scope="run", min_length=1)
    profile: Literal["development", "staging", "production"] = key(
        "production",
        "How much adapts by itself: `development` nothing (fixed limits, no hedges), `staging` the limits, "
        "`production` the limits and the staged response of models.",
        scope="downstream",
    )
    outside: OutsideSettings = Field(default_factory=OutsideSettings, description="What stands in front, as declared.")
    run: RunSettings = Field(default_factory=RunSettings, description="What one run may spend and how it is planned.")
    model: ModelSettings = Field(default_factory=ModelSettings, description="The model that plans, if any.")
    server: ServerSettings = Field(default_factory=ServerSettings, description="The HTTP server.")
    downstreams: dict[str, DownstreamSettings] = Field(
        default_factory=dict, description="How each downstream is guarded, by its name."
    )
    gateway: GatewaySettings = Field(default_factory=GatewaySettings, description="The model gateway's door.")
    models: dict[str, AliasSettings] = Field(
        default_factory=dict, description="The models that the gateway serves, by the name clients use."
    )
    tools: ToolSettings = Field(default_factory=ToolSettings, description="Tools of all kinds, by their names.")
    keys: dict[str, KeySettings] = Field(default_factory=dict, description="API keys, by a name for each.")
    store: StoreSettings = Field(
        default_factory=StoreSettings, description="Where runs, approvals and sessions are kept."
    )
    background: BackgroundSettings = Field(
        default_factory=BackgroundSettings, description="Runs that are answered later, in a lane of their own."
    )
    approvals: ApprovalSettings = Field(default_factory=ApprovalSettings, description="Questions to people.")
    alarms: AlarmSettings = Field(
        default_factory=AlarmSettings, description="What happens when too many runs run out of time."
    )
    redaction: RedactionSettings = Field(
        default_factory=RedactionSettings, description="What is neither stored nor logged."
    )
    load: tuple[str, ...] = key(
        (), "Agents of your own: `package.module:name` or `file.py:name`, where the name is an agent, several, or a "
        "function that gives them.", scope="process",
    )  # fmt: skip
    data: tuple[Path, ...] = key(
        (), "CSV or Parquet files that the analyst answers from; relative to the file. None: the flights of 2013.",
        scope="process",
    )  # fmt: skip
    golden: Path | None = key(
        None, "A YAML file of prepared answers, given first while models fail as a whole; relative to this file.",
        scope="process",
    )  # fmt: skip
    cache_dir: Path | None = key(
        None,
        "Where loaded data is kept. Default: `failsoft` in `XDG_CACHE_HOME`, else in `~/.cache`.",
        scope="process",
    )

    @model_validator(mode="after")
    def _has_its_chooser(self) -> Settings:
        if self.run.chooser is not None and self.run.chooser not in self.models:
            raise ValueError(f"run.chooser: there is no model {self.run.chooser!r} in `models`")
        return self

    def aliases(self) -> tuple[Alias, ...]:
        """The models that the gateway serves."""
        made = tuple(section.alias(name) for name, section in self.models.items())
        return tuple(profiled_alias(alias, self.profile) for alias in made)

    def policy(self, downstream: str, *, default: str = "external") -> Policy:
        """How `downstream` is guarded: its preset (`default` when it has no section) with its own keys over it."""
        section = self.downstreams.get(downstream)
        if section is None:
            return profiled(preset(default), self.profile)
        try:
            return profiled(section.policy(default), self.profile)
        except ValueError as error:
            raise ConfigError(f"downstreams.{downstream}: {error}", param=f"downstreams.{downstream}") from None
