"""The guards every test runs under.

* ``async def test_…`` runs on the virtual-time loop; marked ``realtime`` it runs on a real one.
  Either way it may leave no task behind.
* A blocking call on a running loop fails the test, also when the code under test swallows the error.
* Network beyond loopback is refused and fails the test in the same way.
* An exception of a task or future that nobody looked at fails the test in which asyncio notices.

``tests/test_floor.py`` proves that each of them bites.
"""

import asyncio
import functools
import gc
import importlib
import inspect
import ipaddress
import logging
import sys
from collections.abc import Callable, Coroutine, Generator
from types import FrameType
from typing import Any

import pytest
from blockbuster import BlockBuster, blockbuster
from hypothesis import HealthCheck, settings
from tests.deep import DEEP

AsyncTest = Callable[..., Coroutine[Any, Any, None]]

# A busy machine says nothing about a test: no limit of real time but the cap of each test.
_TIMELESS = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("everyday", _TIMELESS, max_examples=30)
settings.register_profile("deep", _TIMELESS, max_examples=300)
settings.load_profile("deep" if DEEP else "everyday")


# --- async tests -------------------------------------------------------------------------------------------


async def _leaving_no_task(test: Coroutine[Any, Any, None]) -> None:
    """Await `test`, then fail if tasks that it started are still there."""
    await test
    for _ in range(5):  # what has ended is given a few turns of the loop to be gone
        await asyncio.sleep(0)
    if left := asyncio.all_tasks() - {asyncio.current_task()}:
        pytest.fail(f"left tasks behind: {sorted(repr(task) for task in left)}", pytrace=False)


def _in_real_time(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(_leaving_no_task(test))


def _in_virtual_time(test: Coroutine[Any, Any, None]) -> None:
    clock = importlib.import_module("failsoft.testing.clock")  # late: should it be broken, tests fail and not pytest
    clock.run(test)  # which refuses tasks left behind, too


def _made_sync(test: AsyncTest, run: Callable[[Coroutine[Any, Any, None]], None]) -> Callable[..., None]:
    @functools.wraps(test)
    def sync_test(*args: Any, **kwargs: Any) -> None:
        run(test(*args, **kwargs))

    return sync_test


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Give coroutine tests, plain or under Hypothesis, the loop they ask for."""
    run = _in_real_time if pyfuncitem.get_closest_marker("realtime") else _in_virtual_time
    hypothesis = getattr(pyfuncitem.obj, "hypothesis", None)
    if hypothesis is not None and inspect.iscoroutinefunction(hypothesis.inner_test):
        hypothesis.inner_test = _made_sync(hypothesis.inner_test, run)
    elif inspect.iscoroutinefunction(pyfuncitem.obj):
        pyfuncitem.obj = _made_sync(pyfuncitem.obj, run)
    return (yield)


# --- what is refused ---------------------------------------------------------------------------------------


class Audit:
    """The session's one audit hook: the interpreter calls it for every ``id()`` and unpickled name, so it only looks up
    whether anybody cares.
    """

    def __init__(self) -> None:
        self._listeners: dict[str, Callable[[str, tuple[Any, ...]], None]] = {}
        find = self._listeners.get

        def hook(event: str, args: tuple[Any, ...]) -> None:
            listener = find(event)
            if listener is not None:
                listener(event, args)

        sys.addaudithook(hook)

    def listen(self, listener: Callable[[str, tuple[Any, ...]], None], *events: str) -> None:
        """One listener per event."""
        self._listeners.update(dict.fromkeys(events, listener))

    def pytest_unconfigure(self) -> None:
        self._listeners.clear()  # an audit hook cannot be removed


class Refusals:
    """What was refused during the current test phase; makes the test fail even if the error was swallowed."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def _judged(self) -> Generator[None, object, object]:
        self.seen.clear()
        result = yield
        if self.seen:
            pytest.fail("refused: " + "; ".join(dict.fromkeys(self.seen)), pytrace=False)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self) -> Generator[None, object, object]:
        return (yield from self._judged())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        return (yield from self._judged())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self) -> Generator[None, object, object]:
        return (yield from self._judged())


class Forgotten(logging.Handler):
    """What asyncio only logs, long after: exceptions of tasks and futures that nobody looked at, tasks thrown away."""

    def __init__(self, refusals: Refusals) -> None:
        super().__init__(logging.ERROR)
        self.refusals = refusals
        logging.getLogger("asyncio").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Fails the test in which the garbage is collected; the text names the coroutine of the one that made it."""
        text = record.getMessage()
        if "never retrieved" in text or "was destroyed" in text:
            self.refusals.seen.append(" ".join(text.split())[:400])

    def pytest_unconfigure(self) -> None:
        logging.getLogger("asyncio").removeHandler(self)


class NetworkRefusedError(RuntimeError):
    """A test reached for an address outside this machine."""


class Network:
    """Refuses everything but loopback by an audit hook, so no import order or C shortcut gets past it.

    Two things do: uvloop (libuv makes no audit events) and child processes.
    """

    HOST_ARGUMENT = {
        "socket.connect": 1,
        "socket.bind": 1,
        "socket.sendto": 1,
        "socket.sendmsg": 1,
        "socket.getaddrinfo": 0,
        "socket.gethostbyname": 0,
        "socket.gethostbyaddr": 0,
    }

    def __init__(self, refusals: Refusals, audit: Audit) -> None:
        self.refusals = refusals
        audit.listen(self._audit, *self.HOST_ARGUMENT)

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        index = self.HOST_ARGUMENT[event]
        address = args[index]
        host = address[0] if isinstance(address, tuple) else address if index == 0 else None
        if host is not None and not self._is_loopback(host):
            self.refusals.seen.append(f"{event} to {host!r}, which is not loopback")
            raise NetworkRefusedError(self.refusals.seen[-1])

    @staticmethod
    def _is_loopback(host: str | bytes) -> bool:
        name = host.decode("ascii", "replace") if isinstance(host, bytes) else host
        try:
            return ipaddress.ip_address(name.partition("%")[0]).is_loopback
        except ValueError:
            return name == "localhost"


class Blocking:
    """Blocking calls on a running loop are errors, in our code, in tests and in libraries alike."""

    # Where blocking is allowed on a loop, each with its reason.
    ALLOWED = (
        # Importing on first use: a cost of the first call only, and the interpreter's own lock.
        ("<frozen importlib._bootstrap>", "_find_and_load"),
        # Reading a source line for a traceback or a warning; happens once per file and only on failure.
        ("linecache.py", "updatecache"),
        # From 3.13 on a traceback parses its line, and a parser that fails looks for a file called <unknown>.
        ("traceback.py", "_extract_caret_anchors_from_line_segment"),
        # Starting a process opens /dev/null and pipes.
        ("asyncio/base_events.py", "subprocess_exec"),
        ("asyncio/base_events.py", "subprocess_shell"),
        # asyncpg looks for the files of passwords and certificates, once for each connection.
        ("asyncpg/connect_utils.py", "_parse_connect_dsn_and_args"),
        # Where the machine's certificates are: clients that tests use look when they are made.
        ("httpcore2/_ssl.py", "default_ssl_context"),
        # pytest's own work while a test's frame is on the stack.
        ("_pytest/_code/code.py", "repr_traceback"),
    )
    # Replacing these two crashes the interpreter at exit when standard output is buffered. What they would see,
    # writing to a file, begins with opening it, which is seen below.
    NOT_REPLACED = ("io.BufferedWriter.write", "io.TextIOWrapper.write")

    def __init__(self, refusals: Refusals, audit: Audit) -> None:
        class RecordedBlockingError(blockbuster.BlockingError):
            def __init__(self, func: str) -> None:
                super().__init__(func)
                refusals.seen.append(f"blocking call to {func} on a running event loop")

        # The detector looks its error class up here; recording makes swallowed errors fail the test, too.
        blockbuster.BlockingError = self.error = RecordedBlockingError  # type: ignore[misc]
        self.detector = BlockBuster()
        for name in self.NOT_REPLACED:
            del self.detector.functions[name]
        for function in self.detector.functions.values():
            for file, caller in self.ALLOWED:
                function.can_block_in(file, caller)
        self.detector.activate()
        self.active = True
        audit.listen(self._audit, "open")

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        """The detector does not see that a file is opened; the interpreter does."""
        if not self.active or isinstance(args[0], int) or asyncio._get_running_loop() is None:
            return
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            for file, caller in self.ALLOWED:
                if frame.f_code.co_name == caller and frame.f_code.co_filename.endswith(file):
                    return
            frame = frame.f_back
        raise self.error("open")

    def pytest_unconfigure(self) -> None:
        self.active = False
        self.detector.deactivate()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        if item.get_closest_marker("may_block") is None:
            return (yield)
        self.active = False
        self.detector.deactivate()
        try:
            return (yield)
        finally:
            self.detector.activate()
            self.active = True

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        mark = item.get_closest_marker("may_block")
        if mark is not None and not mark.kwargs.get("reason"):
            pytest.fail("may_block needs a reason", pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Lets each worker begin somewhere else: what one has compiled when nothing was yet, the others find done."""
    report = yield
    worker = getattr(collector.config, "workerinput", None)
    if worker is not None and isinstance(collector, pytest.Directory):
        found, share = report.result or [], int(worker["workerid"][2:]) / worker["workercount"]
        first = int(len(found) * share)
        report.result = found[first:] + found[:first]
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None, None, None]:
    """Gives all workers one order, before it is shuffled, and leaves tests marked ``deep`` to the deep suite."""
    items.sort(key=lambda item: item.location[0])
    if not DEEP and (left := [item for item in items if item.get_closest_marker("deep") is not None]):
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item.get_closest_marker("deep") is None]
    return (yield)


def pytest_collection_finish() -> None:
    """What is loaded by now stays: no collection need look at it again, and tests ask for whole ones."""
    gc.collect()
    gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    """Put the guards up for the whole session."""
    gc.set_threshold(5_000, 10, 10)  # collecting tests makes millions of objects, all of which stay
    refusals, audit = Refusals(), Audit()
    for guard in (refusals, audit, Forgotten(refusals), Network(refusals, audit), Blocking(refusals, audit)):
        config.pluginmanager.register(guard)
