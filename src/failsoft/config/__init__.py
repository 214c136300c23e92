"""Settings: one ``failsoft.yaml`` plus the environment, checked at load, wrong keys named by line."""

from failsoft.config.downstreams import BreakerSettings, DownstreamSettings
from failsoft.config.durations import parse_duration
from failsoft.config.reading import load_settings, settings_file
from failsoft.config.reference import Key, keys
from failsoft.config.sections import ModelSettings, RunSettings, ServerSettings, Settings

__all__ = [
    "BreakerSettings",
    "DownstreamSettings",
    "Key",
    "ModelSettings",
    "RunSettings",
    "ServerSettings",
    "Settings",
    "keys",
    "load_settings",
    "parse_duration",
    "settings_file",
]
