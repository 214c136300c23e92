"""Functions that misbehave in a worker process, for the tests of ``failsoft.kernel.processes``."""

import builtins
import contextlib
import ctypes
import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

COUNT = [0]


def pid() -> int:
    return os.getpid()


def add(left: int, *, right: int = 0) -> int:
    return left + right


def nap(seconds: float) -> None:
    time.sleep(seconds)


def counted() -> int:
    COUNT[0] += 1
    return COUNT[0]


def variables() -> dict[str, str]:
    return dict(os.environ)


def limits() -> int:
    import resource

    return resource.getrlimit(resource.RLIMIT_CORE)[0]


# --- families ----------------------------------------------------------------------------------------------


def say_pids(path: str, pids: list[int]) -> None:
    part = Path(path + ".part")
    part.write_text(" ".join(map(str, [os.getpid(), *pids])))
    part.rename(path)


def child(**options: Any) -> int:
    return subprocess.Popen(["sleep", "1000"], **options).pid


def daemon() -> int:
    """Forks twice, with a session and an environment of its own in between, as daemons do."""
    program = (
        "import os\nif os.fork() == 0:\n os.setsid()\n p = os.fork()\n"
        " if p == 0: os.execve('/bin/sleep', ['sleep', '1000'], {})\n print(p, flush=True)\n os._exit(0)"
    )
    with subprocess.Popen([sys.executable, "-I", "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        return int(process.stdout.readline())


def family() -> list[int]:
    return [child(), child(start_new_session=True), daemon()]


def family_and_hang(path: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    say_pids(path, family())
    time.sleep(1000)


def family_and_return() -> list[int]:
    return [os.getpid(), *family()]


def family_and_die(path: str) -> None:
    say_pids(path, [child(), child(start_new_session=True)])
    os._exit(9)


def fork_through() -> int:
    os.fork()
    return os.getpid()


# --- output ------------------------------------------------------------------------------------------------


def flood(megabytes: int) -> None:
    block = b"x" * (1 << 20)
    for _ in range(megabytes):
        os.write(1, block)
    print("the end")
    raise RuntimeError("after the flood")


def whisper(text: str) -> str:
    print(text)
    print(text, file=sys.stderr)
    return text


def shut_mouth() -> str:
    sys.stdout.close()
    os.close(1)
    os.close(2)
    return "done"


# --- results -----------------------------------------------------------------------------------------------


def large(size: int) -> bytes:
    return bytes(size)


def unpicklable() -> object:
    return lambda: 0


class Poison:
    def __reduce__(self) -> tuple[object, ...]:
        return int, ("no number",)


def poison() -> Poison:
    return Poison()


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise SystemExit("no")


ERRORS = (
    "ValueError SystemExit KeyboardInterrupt BaseException CancelledError GeneratorExit UnprintableError MemoryError"
)


def raises(name: str) -> None:
    if name == "CancelledError":
        from asyncio import CancelledError

        raise CancelledError
    raise globals().get(name) or getattr(builtins, name)("a text")


# --- ends --------------------------------------------------------------------------------------------------


def segfault() -> None:
    ctypes.string_at(0)


def sleep_in_c() -> None:
    """Sleeps in C with the interpreter's lock held: no Python thread or signal handler can run."""
    ctypes.PyDLL(None).sleep(1000)


def close_pipes() -> None:
    os.closerange(3, 64)
    time.sleep(1000)


def talk_out_of_turn(text: bytes) -> None:
    """Writes to every pipe there is."""
    for fd in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if fd > 2:
            with contextlib.suppress(OSError):
                os.write(fd, text)
    time.sleep(1000)


def eat(megabytes: int) -> int:
    return len(bytes(megabytes << 20))


# --- what cannot travel, and what can ------------------------------------------------------------------------


def decorated(fn):
    @functools.wraps(fn)
    def wrapper(*args):
        raise AssertionError("the wrapper ran")

    return wrapper


def inner_function(value: int) -> int:
    return value + 1


under = inner_function
inner_function = decorated(inner_function)


class Class:
    def method(self) -> None:
        pass

    @staticmethod
    def static() -> str:
        return "static"

    @classmethod
    def of_class(cls) -> str:
        return cls.__name__


async def coroutine() -> None:
    pass


def closure():
    def inside() -> None:
        pass

    return inside
