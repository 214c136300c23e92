"""Standard output and error as they really are: closed, full, of another encoding, or a terminal that obeys."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from pathlib import Path
from typing import Final

__all__ = ["abandoned", "made_lenient", "told_everything", "visible"]

_COMMANDS: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    """The text without what a terminal obeys in place of showing it: a table's values come from anybody."""
    return _COMMANDS.sub("\ufffd", text)


def made_lenient() -> None:
    """Lets no output fail for a character that its encoding does not have, or for a stream that was closed before."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - to the process's end
        else:
            with contextlib.suppress(AttributeError, ValueError, OSError):  # a stream of somebody else's making
                stream.reconfigure(errors="backslashreplace")


def told_everything() -> OSError | None:
    """Flushes standard output now, where an error can still be told; gives the error."""
    try:
        sys.stdout.flush()
    except OSError as error:
        abandoned()
        return error
    except ValueError:  # it has been closed
        return None
    return None


def abandoned() -> None:
    """Nothing more goes to standard output, and its buffer is not tried again when the interpreter ends."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())
        os.close(nothing)
