"""The composition root: the one place where settings, guards, agents, tools and the store meet."""

from failsoft.app.application import App, AppStatistics
from failsoft.app.wiring import limits_of, retention_of, store_of

__all__ = ["App", "AppStatistics", "limits_of", "retention_of", "store_of"]
