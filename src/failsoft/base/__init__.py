"""Errors, events, messages and settings primitives; the standard library only."""
