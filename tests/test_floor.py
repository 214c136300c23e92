"""The guards of the test-suite bite: each small failing example fails, and for the reason it should."""

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

EXAMPLES = Path(__file__).parent / "floor_examples"
# One interpreter runs all examples of a file, once; that may be slow on a busy machine.
pytestmark = pytest.mark.timeout(120)

REFUSED = "is not loopback"
BLOCKED = "refused: blocking call to {} on a running event loop"
REASONS = {
    "test_wrong_in_async": "async tests are really run",
    "test_property": "assert 50 < 50",
    "test_task_left_behind[virtual]": "left tasks behind",
    "test_task_left_behind[real]": "left tasks behind",
    "test_warning": "UserWarning: careless",
    "test_forgotten_await": "coroutine 'sleep' was never awaited",
    "test_error_in_a_thread": "ZeroDivisionError",
    "test_socket_left_open": "unclosed <socket.socket",
    "test_exception_that_nobody_looked_at": "exception was never retrieved",
    "test_sleeps_on_the_loop[virtual]": BLOCKED.format("time.sleep"),
    "test_sleeps_on_the_loop[real]": BLOCKED.format("time.sleep"),
    "test_queries_on_the_loop[virtual]": BLOCKED.format("sqlite3.Connection.execute"),
    "test_queries_on_the_loop[real]": BLOCKED.format("sqlite3.Connection.execute"),
    "test_reads_a_file_on_the_loop[virtual]": BLOCKED.format("open"),
    "test_reads_a_file_on_the_loop[real]": BLOCKED.format("open"),
    "test_writes_a_file_on_the_loop[virtual]": BLOCKED.format("open"),
    "test_writes_a_file_on_the_loop[real]": BLOCKED.format("open"),
    "test_waits_for_a_lock_on_the_loop[virtual]": "refused: blocking call to lock.acquire",
    "test_waits_for_a_lock_on_the_loop[real]": "refused: blocking call to lock.acquire",
    "test_blocks_a_loop_of_its_own": BLOCKED.format("time.sleep"),
    "test_may_block_without_a_reason": "may_block needs a reason",
    "test_connects": f"socket.getaddrinfo to '192.0.2.1', which {REFUSED}",
    "test_resolves": f"socket.getaddrinfo to 'failsoft.invalid', which {REFUSED}",
    "test_resolves_the_old_way": f"socket.gethostbyname to 'failsoft.invalid', which {REFUSED}",
    "test_sends_a_datagram": f"socket.sendto to '192.0.2.1', which {REFUSED}",
    "test_listens_on_all_addresses": f"socket.bind to '0.0.0.0', which {REFUSED}",
    "test_fetches": f"socket.getaddrinfo to 'failsoft.invalid', which {REFUSED}",
    "test_opens_a_connection": f"socket.connect to '192.0.2.1', which {REFUSED}",
    "test_requests": f"socket.getaddrinfo to 'failsoft.invalid', which {REFUSED}",
    "test_hangs": "Timeout (>0.5s)",
    "test_hangs_on_the_loop": "Timeout (>0.5s)",
    "test_hangs_in_virtual_time": "nothing can ever happen",
    "test_randomness_is_seeded_by_the_command_line": "drawn: 0.",
}


def results_of(file: str, folder: Path, *options: str) -> dict[str, str | None]:
    """Run the examples of one file under the project's own configuration: why each failed, None if it passed."""
    report = folder / f"{file}.xml"
    command = [sys.executable, "-m", "pytest", f"--junitxml={report}", "-n0", "-pno:cacheprovider", "-q", *options]
    done = subprocess.run(
        [*command, EXAMPLES / file], capture_output=True, text=True, timeout=110, check=False, cwd=EXAMPLES.parents[1]
    )
    assert report.exists(), done.stdout + done.stderr
    return {
        case.attrib["name"]: "\n".join(f"{part.get('message')}\n{part.text}" for part in case) if len(case) else None
        for case in ElementTree.parse(report).iter("testcase")
    }


@pytest.fixture(scope="module")
def failures(tmp_path_factory):
    return results_of("failing.py", tmp_path_factory.mktemp("failing"), "--randomly-seed=1")


def test_every_failing_example_has_its_reason_here(failures):
    assert failures.keys() == REASONS.keys()


@pytest.mark.parametrize("example", REASONS)
def test_guard_bites(failures, example):
    assert failures[example] is not None, "passed, but must fail"
    assert REASONS[example] in failures[example]


def test_guards_leave_the_rest_alone(tmp_path):
    results = results_of("passing.py", tmp_path)
    assert len(results) >= 13
    assert not any(results.values()), results


def test_order_is_random(failures):
    assert list(failures) != list(REASONS)


def test_configured_limits(pytestconfig: pytest.Config):
    assert float(pytestconfig.getini("timeout")) == 20
    assert pytestconfig.getini("filterwarnings") == ["error"]
