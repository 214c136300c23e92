"""Aliases and their routes: what a model's name stands for, best first."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from failsoft.kernel.cache import CachePolicy
from failsoft.kernel.policy import Policy, preset
from failsoft.models.limits import ModelLimits
from failsoft.models.staged import StagedPolicy
from failsoft.models.stickiness import StickinessPolicy

__all__ = ["Alias", "Route", "UpstreamStream"]

UpstreamStream = Literal["auto", "always", "never"]
"""Whether the upstream is asked to stream. ``always``: also for clients that do not, so that closing the connection
stops its work at once; the answer is assembled here. ``auto``: as the client does. ``never``: for upstreams that
cannot."""


@dataclass(frozen=True, slots=True)
class Route:
    """One way to have an alias answered: a model at a base URL under a key, or a plain text (``text``, no model at
    all).

    ``equivalent``: its answer counts as complete when an earlier route failed. ``system`` is put in front of the
    conversation, ``text`` may use ``{question}``, the last user message. ``max_input_tokens``: longer inputs are cut
    in their middle, keeping the instruction. ``max_tokens`` caps the answer's length, for simplified routes.
    ``usual`` is the time in seconds reserved for this route by those before it, until it is learned. ``output_note``
    tells the model its output limit. The key never shows in a repr.
    """

    name: str
    base_url: str | None = None
    model: str | None = None
    api_key: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    text: str | None = None
    system: str | None = None
    equivalent: bool = False
    upstream_stream: UpstreamStream = "always"
    max_input_tokens: int | None = None
    max_tokens: int | None = None
    output_note: bool = False
    usual: float = 2.0
    capacity: int = 20
    limits: ModelLimits = field(default_factory=ModelLimits)
    policy: Policy = field(default_factory=lambda: preset("model"))
    staged: StagedPolicy = field(default_factory=StagedPolicy)
    downstream: str = field(init=False, compare=False)
    """The guard's name: aliases whose routes have one name, place, model and key share a breaker and a bulkhead; a
    digest tells the others apart without telling the key.
    """

    def __post_init__(self) -> None:
        if (self.text is None) == (self.base_url is None):
            raise ValueError(f"route {self.name!r} needs either base_url or text")
        if self.base_url is not None and not self.base_url.startswith(("http://", "https://")):
            raise ValueError(f"route {self.name!r}: base_url must start with http:// or https://")
        place = "\0".join((self.base_url or "", self.model or "", self.api_key or ""))
        digest = hashlib.blake2b(place.encode(), digest_size=4).hexdigest()
        object.__setattr__(self, "downstream", f"model:{self.name}#{digest}")

    @property
    def url(self) -> str:
        """Where chat completions are asked for."""
        return f"{(self.base_url or '').rstrip('/')}/chat/completions"


@dataclass(frozen=True, slots=True)
class Alias:
    """A model's name as clients know it, and its routes: main, backups, simplified.

    ``commit_after``: seconds that response headers are held back for the first content; after them a stream is opened
    with heart-beats and a failover is still invisible. ``continue_on_cut``: a stream that breaks off after content
    goes on at the next route, which gets what was said so far; the seam is marked. ``cache`` None: answers are not
    kept.
    """

    name: str
    routes: tuple[Route, ...]
    commit_after: float = 5.0
    heartbeat: float = 5.0
    continue_on_cut: bool = False
    cache: CachePolicy | None = None
    coalesce: bool = True
    stickiness: StickinessPolicy = field(default_factory=StickinessPolicy)
    description: str = ""

    def __post_init__(self) -> None:
        if not self.routes:
            raise ValueError(f"alias {self.name!r} needs at least one route")
        names = [route.name for route in self.routes]
        if len(set(names)) != len(names):
            raise ValueError(f"alias {self.name!r} has two routes of one name")
        if not (self.commit_after > 0 and self.heartbeat > 0):
            raise ValueError("commit_after and heartbeat must be positive")
