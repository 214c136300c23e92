"""Failsoft: an agent platform that never cascades.

A client asks in natural language; the platform plans, calls models and tools, aggregates, and answers
within the client's time budget, whatever is slow or broken behind it: in full where it can, degraded and
saying so where it must.
"""

__version__ = "0.1.0"

__all__ = ["__version__"]
