"""The model gateway's settings: aliases with their routes, as they are written, and as the gateway takes them.

Every key maps to one field of :mod:`failsoft.models.routes` and of the policies behind it; a key that is left out keeps
that field's default.
"""

from __future__ import annotations

import dataclasses
from types import MappingProxyType
from typing import Any, Literal

from pydantic import Field, SecretStr, model_validator

from failsoft.config.downstreams import DownstreamSettings
from failsoft.config.keys import Seconds, Section, key
from failsoft.kernel.cache import CachePolicy
from failsoft.models.limits import ModelLimits
from failsoft.models.routes import Alias, Route
from failsoft.models.staged import StagedPolicy
from failsoft.models.stickiness import StickinessPolicy
from failsoft.models.webhook import WebhookPolicy

__all__ = ["AliasSettings", "GatewaySettings", "RouteSettings"]


class LimitSettings(Section):
    """Time limits of one route's model; each attempt gets the least of these, the computed one and the budget's."""

    connect: Seconds | None = key(
        None, "Until the connection stands. Default: 3 s.", scope="downstream", unit="seconds", gt=0
    )
    first_content: Seconds | None = key(
        None, "Until the first content; a role is none. Default: 5 s.", scope="downstream", unit="seconds", gt=0
    )
    idle: Seconds | None = key(None, "Between chunks. Default: 15 s.", scope="downstream", unit="seconds", gt=0)
    total: Seconds | None = key(None, "The whole attempt. Default: 30 s.", scope="downstream", unit="seconds", gt=0)
    base: Seconds | None = key(
        None, "The computed limit's base. Default: 8.5 s.", scope="downstream", unit="seconds", gt=0
    )
    k: float | None = key(
        None, "What 100 tokens add to the computed limit, in bases. Default: 0.25.", scope="downstream", ge=0
    )
    margin: Seconds | None = key(None, "Added to the computed limit. Default: 1 s.", scope="downstream", unit="seconds")
    least: Seconds | None = key(
        None, "The computed limit is at least this. Default: 5 s.", scope="downstream", unit="seconds", gt=0
    )
    most: Seconds | None = key(
        None, "The computed limit is at most this. Default: 120 s.", scope="downstream", unit="seconds", gt=0
    )
    usual_output: int | None = key(
        None, "Tokens expected of an answer when a request sets no limit. Default: 512.", scope="downstream", ge=0
    )


class StagedSettings(Section):
    """The staged response to a model that gets slow: L1 shortens its limit, L2 asks for more instances."""

    timeouts: int | None = key(None, "Time-outs in a row that begin L1. Default: 3.", scope="downstream", ge=1)
    successes: int | None = key(None, "Successes in a row that end L1. Default: 5.", scope="downstream", ge=1)
    shortened: Seconds | None = key(
        None, "The limit during L1. Default: 15 s.", scope="downstream", unit="seconds", gt=0
    )
    slow_ratio: float | None = key(
        None, "L2 begins when the p99 is over this many baselines. Default: 2.", scope="downstream", gt=1
    )
    recovered_ratio: float | None = key(
        None, "L2 ends when the p99 is under this many baselines. Default: 1.2.", scope="downstream", ge=1
    )
    for_seconds: Seconds | None = key(
        None, "How long it must be so. Default: 2 min.", scope="downstream", unit="seconds", gt=0
    )
    instances: int | None = key(None, "How many instances L2 asks for on top. Default: 2.", scope="downstream", ge=1)


class StickinessSettings(Section):
    """When an alias leaves a route, and when it tries to come back."""

    timeouts: int | None = key(None, "Time-outs in a row that make it leave. Default: 5.", scope="downstream", ge=1)
    errors: int | None = key(None, "Errors in a row that make it leave. Default: 3.", scope="downstream", ge=1)
    probe_after: Seconds | None = key(
        None, "The earliest return, drawn at random up to `probe_within`. Default: 4 min.", scope="downstream",
        unit="seconds", gt=0,
    )  # fmt: skip
    probe_within: Seconds | None = key(
        None, "The latest return. Default: 8 min.", scope="downstream", unit="seconds", gt=0
    )


class CacheSettings(Section):
    """The exact cache of an alias's complete answers."""

    ttl: Seconds = key(60.0, "How long an answer is fresh.", scope="downstream", unit="seconds", gt=0)
    stale_for: Seconds | None = key(
        None, "How long after that it may serve when no route does. Default: 1 h.", scope="downstream", unit="seconds"
    )
    entries: int | None = key(None, "Answers kept at most. Default: 1000.", scope="downstream", ge=1)
    max_bytes: int | None = key(None, "Bytes kept at most. Default: 64 MiB.", scope="downstream", unit="bytes", ge=1)


class RouteSettings(Section):
    """One way to have an alias answered: a model somewhere, or a text without any model."""

    base_url: str | None = key(
        None, "An OpenAI-compatible endpoint, up to and with `/v1`.", scope="downstream", min_length=1
    )
    model: str | None = key(None, "The model's name there. Default: the alias.", scope="downstream", min_length=1)
    api_key: SecretStr | None = key(None, "The key for it, from the environment only: `${NAME}`.", scope="downstream")
    headers: dict[str, SecretStr] = key({}, "Further headers for it, by name.", scope="downstream")
    text: str | None = key(
        None, "The answer itself, in place of a model; `{question}` is the last user message.", scope="downstream"
    )
    system: str | None = key(None, "A system prompt in front of the conversation.", scope="downstream")
    equivalent: bool = key(
        False, "Whether its answer counts as complete, not degraded, when a better route failed.", scope="downstream"
    )
    upstream_stream: Literal["always", "auto", "never"] = key(
        "always",
        "Whether the upstream is asked to stream: `always` (closing the connection stops its work at once), `auto` "
        "(as the client asks), `never`.",
        scope="downstream",
    )
    max_input_tokens: int | None = key(
        None, "Longer inputs are cut in their middle, keeping the instruction.", scope="downstream", ge=1
    )
    max_tokens: int | None = key(None, "The longest answer that is asked for.", scope="downstream", ge=1)
    output_note: bool = key(False, "Whether the prompt states the output limit.", scope="downstream")
    usual: Seconds = key(
        2.0, "Time kept for this route by those before it, until it is learned.", scope="downstream", unit="seconds"
    )
    capacity: int = key(20, "Calls at once that mean full load, for the computed limit.", scope="downstream", ge=1)
    limits: LimitSettings | None = None
    staged: StagedSettings | None = None
    guard: DownstreamSettings | None = None

    def route(self, name: str) -> Route:
        """The route as the gateway takes it. Raises ``ValueError`` when keys contradict each other."""
        given: dict[str, Any] = {
            field: getattr(self, field)
            for field in (
                "base_url", "model", "text", "system", "equivalent", "upstream_stream", "max_input_tokens",
                "max_tokens", "output_note", "usual", "capacity",
            )
        }  # fmt: skip
        if self.api_key is not None:
            given["api_key"] = self.api_key.get_secret_value()
        if self.headers:
            given["headers"] = MappingProxyType({n: v.get_secret_value() for n, v in self.headers.items()})
        if self.guard is not None:
            given["policy"] = self.guard.policy("model")
        return Route(name, **given, limits=_over(ModelLimits(), self.limits), staged=_over(StagedPolicy(), self.staged))

    @model_validator(mode="after")
    def _sound(self) -> RouteSettings:
        self.route("this")
        return self


class AliasSettings(Section):
    """A model's name as clients know it, with its routes: best first, in the file's order."""

    description: str = key("", "What it is, for people.", scope="downstream")
    commit_after: Seconds = key(
        5.0, "How long a stream's headers are held back for its first content.", scope="downstream", unit="seconds",
        gt=0,
    )  # fmt: skip
    heartbeat: Seconds = key(
        5.0, "How often a silent stream sends a comment after that.", scope="downstream", unit="seconds", gt=0
    )
    continue_on_cut: bool = key(
        False, "Whether a stream that breaks off goes on at the next route, given what was said so far.",
        scope="downstream",
    )  # fmt: skip
    coalesce: bool = key(True, "Whether identical calls in flight share one.", scope="downstream")
    cache: CacheSettings | None = None
    stickiness: StickinessSettings | None = None
    routes: dict[str, RouteSettings] = Field(description="The routes by name, best first.", min_length=1)

    def alias(self, name: str) -> Alias:
        """The alias as the gateway takes it."""
        return Alias(
            name,
            tuple(route.route(called) for called, route in self.routes.items()),
            commit_after=self.commit_after,
            heartbeat=self.heartbeat,
            continue_on_cut=self.continue_on_cut,
            coalesce=self.coalesce,
            cache=None if self.cache is None else _over(CachePolicy(), self.cache),
            stickiness=_over(StickinessPolicy(), self.stickiness),
            description=self.description,
        )

    @model_validator(mode="after")
    def _sound(self) -> AliasSettings:
        self.alias("this")
        return self


class WebhookSettings(Section):
    """Who is told of alerts and of the levels of a model that gets slow: an address that takes signed POSTs."""

    url: str = key(..., "Where messages are sent.", scope="process", pattern="^https?://")
    secret: SecretStr | None = key(
        None, "The key of the signature, HMAC-SHA256; from the environment only: `${NAME}`.", scope="process"
    )
    events: list[Literal["alert", "L1", "L2"]] = key(
        ["alert", "L2"],
        "What is told: `alert` (a refused key, a used-up quota, a name or certificate that fails, empty answers), `L1` "
        "(shortened limits), `L2` (more instances are wanted, or no longer).",
        scope="process",
    )
    timeout: Seconds = key(5.0, "How long one try may take.", scope="process", unit="seconds", gt=0, le=60)
    retries: int = key(2, "Tries after the first.", scope="process", ge=0, le=10)
    repeat_after: Seconds = key(
        60.0, "How long the same alert is not told again, but counted.", scope="process", unit="seconds", ge=0
    )

    def policy(self) -> WebhookPolicy:
        """The policy as the gateway takes it."""
        return WebhookPolicy(
            self.url,
            None if self.secret is None else self.secret.get_secret_value(),
            frozenset(self.events),
            self.timeout,
            self.retries,
            self.repeat_after,
        )


class GatewaySettings(Section):
    """The door of the model gateway: `/v1/chat/completions`, `/v1/embeddings`, `/v1/models`."""

    budget: Seconds = key(60.0, "Time a call has when its caller names none.", scope="process", unit="seconds", gt=0)
    maximum_budget: Seconds = key(
        600.0, "The longest budget; a caller who asks for more gets this.", scope="process", unit="seconds", gt=0
    )
    max_body: int = key(
        8_388_608, "The largest request body; more is answered 413.", scope="process", unit="bytes", ge=1024
    )
    body_timeout: Seconds = key(
        15.0, "How long a client may take to send its body.", scope="process", unit="seconds", gt=0
    )
    write_timeout: Seconds = key(
        30.0, "How long a client may leave a stream unread before it is cut off.", scope="process", unit="seconds",
        gt=0,
    )  # fmt: skip
    connections: int = key(256, "Connections to each upstream at most.", scope="process", ge=1, le=100_000)
    log: Literal["stderr", "stdout", "off"] = key(
        "stderr", "Where one JSON line for each call goes; never with content or keys.", scope="process"
    )
    webhook: WebhookSettings | None = None

    @model_validator(mode="after")
    def _ordered(self) -> GatewaySettings:
        if self.budget > self.maximum_budget:
            raise ValueError("budget is over maximum_budget")
        return self


def _over(default: Any, section: Section | None) -> Any:
    """The policy `default` with the section's keys over it."""
    if section is None:
        return default
    given = {name: value for name in type(section).model_fields if (value := getattr(section, name)) is not None}
    return dataclasses.replace(default, **given)
