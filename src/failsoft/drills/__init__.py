"""Injected faults and what they prove."""
