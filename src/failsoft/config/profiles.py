"""Profiles: how much of a policy adapts by itself. Development: nothing; staging: limits; production: all."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

from failsoft.kernel.policy import Policy
from failsoft.models.routes import Alias

__all__ = ["Profile", "profiled", "profiled_alias"]

Profile = Literal["development", "staging", "production"]


def profiled(policy: Policy, profile: Profile) -> Policy:
    """The policy under a profile. In development every limit is the written one, so that what is seen is repeatable."""
    if profile != "development":
        return policy
    cap = policy.attempt_timeout
    if cap is None and policy.adaptive_timeout is not None:
        cap = policy.adaptive_timeout.cap
    return replace(
        policy,
        adaptive_timeout=None,
        attempt_timeout=cap,
        hedge=None,
        bulkhead=replace(policy.bulkhead, adaptive=None),
    )


def profiled_alias(alias: Alias, profile: Profile) -> Alias:
    """The alias under a profile: only production has the staged response, which shortens a slow model's limit."""
    if profile == "production":
        return alias
    routes = tuple(
        replace(
            route,
            policy=profiled(route.policy, profile),
            staged=replace(route.staged, timeouts=_NEVER, slow_ratio=math.inf),
        )
        for route in alias.routes
    )
    return replace(alias, routes=routes)


_NEVER = 1 << 62
