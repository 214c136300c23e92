"""Tools that run in worker processes, for the tests: well-behaved ones and others."""

import ctypes
import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from failsoft.tools.python import tool
from failsoft.tools.registry import Isolation


@dataclasses.dataclass(frozen=True)
class Pair:
    left: int
    right: int = 0


@tool(isolation="process")
def added(pair: Pair, times: int = 1) -> Pair:
    """Adds up.

    Args:
        pair: What to add.
        times: How often.
    """
    return Pair((pair.left + pair.right) * times, os.getpid())


@tool(isolation="process", timeout="500ms", kind="action")
def sleeps_in_c(seconds: float) -> None:
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))  # keeps the interpreter's lock


@tool(isolation="process", downstream="stubborn")
def warm() -> int:
    return os.getpid()


@tool(isolation="process", timeout="3s", kind="action")
def stubborn(pids: str) -> None:
    """Ignores SIGTERM, and so do its children, one of them in a session of its own."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    program = "import signal,time; signal.signal(15, signal.SIG_IGN); time.sleep(99)"
    children = [subprocess.Popen([sys.executable, "-Ic", program], start_new_session=a) for a in (False, True)]
    Path(pids).write_text(" ".join(str(one) for one in [os.getpid(), *[child.pid for child in children]]))
    while True:
        time.sleep(1)


@tool(isolation="process", kind="action", result_limit=1_000_000, timeout=30)
def misbehaves(how: str) -> Any:
    if how == "prints 1 GB":
        line = b"x" * 65_535 + b"\n"
        for _ in range(16_384):
            os.write(1, line)
        return "printed"
    if how == "returns 100 MB":
        return [f"{n}" * 1_000_000 for n in range(100)]
    if how == "segfault":
        ctypes.string_at(0)
    if how == "exit":
        os._exit(3)
    if how == "BaseException":
        raise BaseException("boom")
    if how == "SystemExit":
        sys.exit(7)
    if how == "unpicklable":
        return lambda: 1
    if how == "no plain data":
        return [object]
    if how == "recursion":
        return misbehaves(how)
    raise ValueError(how)


@tool(isolation=Isolation(workers=1, memory_limit=1 << 30), kind="action")
def hungry(megabytes: int) -> int:
    return len(bytearray(megabytes << 20))


@tool(isolation=Isolation(allow_env=("THE_TOKEN",)))
def variables(names: list[str]) -> list[str | None]:
    return [os.environ.get(name) for name in names]
