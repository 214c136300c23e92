"""Who drives a background run, where. State stays in the store."""
