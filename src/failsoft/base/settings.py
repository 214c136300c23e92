"""Primitives of settings: what a setting's change may touch.

``run`` settings may differ between runs (a staged rollout); ``downstream`` settings change in place through
``reconfigure()``, keeping state and shrinking by draining; ``process`` settings need a restart.
"""

from __future__ import annotations

from typing import Literal

__all__ = ["Scope"]

Scope = Literal["run", "downstream", "process"]
