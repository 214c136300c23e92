"""Clocks, fakes and contract suites, shipped for users' own tests."""
