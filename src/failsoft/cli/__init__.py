"""The command line: ``failsoft ask``, ``failsoft serve``, ``failsoft demo``."""

from failsoft.cli.main import app, main

__all__ = ["app", "main"]
