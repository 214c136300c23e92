"""What happened and why: metrics, traces, logs, diagnosis."""
