"""Where a run's truth is kept: the store port and its implementations."""
