"""The program of a worker process: takes one call at a time from a pipe, runs it, writes its end to another pipe.

Started by :mod:`failsoft.kernel.keeper` as a file of its own with ``python -I``, so it knows the standard library only
and is up in some 50 ms. What it may be asked to run is hostile, in the sense of badly behaved: whatever the function
raises, prints or leaves behind, the loop here goes on or the process ends, and the keeper tells the caller which.

A frame, in either direction, is :data:`HEADER` (a mark, two lengths in bytes, big-endian), a JSON object, a pickle.
The first frame sets the worker up; it is answered only if that failed. Errors travel as text in the JSON object, never
as pickled exceptions.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import importlib
import json
import os
import pickle
import resource
import select
import signal
import struct
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

__all__ = ["HEADER", "MAGIC", "frame", "main", "resolve"]

HEADER: Final = struct.Struct(">4sIQ")
"""Mark, length of the JSON object, length of the pickle."""

MAGIC: Final = b"fsw1"

_F_SETSIG: Final = 10
"""Linux' ``F_SETSIG`` (fcntl(2)); the standard library has no name for it before 3.13."""

_PR_SET_CHILD_SUBREAPER: Final = 36
"""Linux' prctl(2): descendants whose parent ends become children of this process, not of init."""

_FRAMES: Final = -8
"""How many frames of a traceback travel: the innermost."""

_TEXT: Final = 4000
"""Characters of a traceback or message that travel."""


def frame(head: dict[str, Any], body: bytes = b"") -> bytes:
    """A frame as bytes."""
    text = json.dumps(head).encode()
    return b"".join((HEADER.pack(MAGIC, len(text), len(body)), text, body))


def resolve(module: str, qualname: str, depth: int) -> Callable[..., Any]:
    """The function of that module and qualified name, `depth` times unwrapped (``__wrapped__``)."""
    found: Any = importlib.import_module(module)
    for name in qualname.split("."):
        found = getattr(found, name)
    for _ in range(depth):
        found = found.__wrapped__
    return found  # type: ignore[no-any-return]  # what a name stands for is known at run time only


class _Worker:
    def __init__(self, requests: int, replies: int, lifeline: int) -> None:
        self.requests = requests
        self.replies = replies
        self.lifeline = lifeline
        self.pid = os.getpid()
        self.resolve = functools.lru_cache(maxsize=256)(resolve)

    # --- set up ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        own = (self.requests, self.replies, self.lifeline)
        for fd in own:
            os.set_inheritable(fd, False)
        os.register_at_fork(after_in_child=functools.partial(_close, *own))
        self.tie_to_parent()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)  # type: ignore[union-attr]
        with contextlib.suppress(Exception):  # says on standard error where a segmentation fault was
            import faulthandler

            faulthandler.enable()
        if sys.platform == "linux":
            with contextlib.suppress(Exception):  # without it, daemonised children are found by their environment only
                import ctypes

                ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def tie_to_parent(self) -> None:
        """When the parent is gone, however it went, the kernel kills this process group.

        The lifeline is a pipe on which nothing is ever written: its only event is that the parent's end closes. On
        Linux that raises the signal set by ``F_SETSIG``, also while a C function holds the interpreter's lock.
        Elsewhere a thread waits for it.
        """
        try:
            fcntl.fcntl(self.lifeline, fcntl.F_SETOWN, -os.getpgrp())
            fcntl.fcntl(self.lifeline, _F_SETSIG, signal.SIGKILL)
            flags = fcntl.fcntl(self.lifeline, fcntl.F_GETFL)
            fcntl.fcntl(self.lifeline, fcntl.F_SETFL, flags | os.O_ASYNC)
        except (OSError, AttributeError, ValueError):
            threading.Thread(target=self._await_parents_end, daemon=True).start()
        if _hung_up(self.lifeline, 0):
            os._exit(0)

    def _await_parents_end(self) -> None:
        while not _hung_up(self.lifeline, None):
            pass
        os.killpg(0, signal.SIGKILL)

    def set_up(self, head: dict[str, Any]) -> None:
        sys.path[:] = head["path"]
        if (memory := head["memory"]) is not None:
            hard = resource.getrlimit(resource.RLIMIT_AS)[1]
            most = memory if hard == resource.RLIM_INFINITY else min(memory, hard)
            resource.setrlimit(resource.RLIMIT_AS, (most, most))

    # --- one call ----------------------------------------------------------------------------------------------

    def call(self, head: dict[str, Any], body: bytes) -> bytes:
        """Runs a call; its reply as a frame."""
        stage = "function"
        try:
            fn = self.resolve(head["module"], head["name"], head["depth"])
            stage = "arguments"
            args, kwargs = pickle.loads(body)  # noqa: S301 - from the parent
            stage = "call"
            value = fn(*args, **kwargs)
            stage = "result"
            pickled = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
            end, answer = {"end": "value"}, pickled
        except BaseException as error:  # noqa: BLE001 - also its SystemExit is one failed call and not the worker's end
            end, answer = _described(error, stage), b""
        if os.getpid() != self.pid:
            os._exit(70)  # a fork inside the function has come back through here; it is not the worker
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # closed or replaced by the function
                stream.flush()
        return frame({**end, "left": _children_left()}, answer)

    # --- pipes -------------------------------------------------------------------------------------------------

    def receive(self) -> tuple[dict[str, Any], bytes] | None:
        """The next frame; None when the parent has closed its end."""
        header = self._read(HEADER.size)
        if header is None:
            return None
        _, head, body = HEADER.unpack(header)
        text, pickled = self._read(head), self._read(body)
        if text is None or pickled is None:
            return None
        return json.loads(text), pickled

    def _read(self, size: int) -> bytes | None:
        first = os.read(self.requests, size) if size else b""
        if len(first) == size:
            return first
        read = bytearray(first)
        while chunk := os.read(self.requests, min(size - len(read), 1 << 20)):
            read += chunk
            if len(read) == size:
                return bytes(read)
        return None

    def send(self, reply: bytes) -> None:
        rest = memoryview(reply)
        while rest:
            rest = rest[os.write(self.replies, rest) :]

    def serve(self) -> None:
        """Set up, then call after call until the parent closes its end."""
        try:
            self.start()
            first = self.receive()
            if first is None:
                return
            self.set_up(first[0])
        except Exception as error:  # noqa: BLE001 - reported to the parent, and the end
            self.send(frame({**_described(error, "setup"), "left": False}))
            return
        while (request := self.receive()) is not None:
            reply = self.call(*request)
            del request
            self.send(reply)
            del reply


def _described(error: BaseException, stage: str) -> dict[str, Any]:
    """An exception as plain text; nothing that it does while it is looked at gets past here."""
    described: dict[str, Any] = {"end": "error", "stage": stage, "type": type(error).__qualname__}
    described.update(message="", traceback="")
    with contextlib.suppress(BaseException):
        described["message"] = str(error)[:_TEXT]
    with contextlib.suppress(BaseException):
        import traceback

        trace = error.__traceback__
        inner = trace.tb_next if trace is not None and stage == "call" else trace  # without our own frame
        described["traceback"] = "".join(traceback.format_exception(error.with_traceback(inner), limit=_FRAMES))[
            -_TEXT:
        ]
    return described


def _children_left() -> bool:
    """Whether the call has left child processes running; those that have ended are buried."""
    try:
        while True:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return True
    except ChildProcessError:
        return False


def _hung_up(fd: int, timeout: float | None) -> bool:
    waiting = select.poll()
    waiting.register(fd, 0)
    return bool(waiting.poll(timeout))


def _close(*fds: int) -> None:
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)


def main(argv: list[str]) -> None:
    """``python -I worker.py REQUESTS REPLIES LIFELINE`` with the numbers of three inherited file descriptors."""
    requests, replies, lifeline = map(int, argv)
    try:
        _Worker(requests, replies, lifeline).serve()
    except BrokenPipeError:
        os._exit(0)  # the parent is gone, or has given this worker up


if __name__ == "__main__":
    main(sys.argv[1:])
