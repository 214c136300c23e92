"""The HTTP door: auth, limits, the runs API, server-sent events."""
