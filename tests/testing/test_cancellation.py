"""The tool that cancels at every await: it finds what it is meant to find, at exactly the places there are."""

import asyncio
import itertools
from collections.abc import Coroutine
from typing import Any

import pytest

from failsoft.testing.cancellation import Flavour, cancel_at_every_await
from failsoft.testing.clock import Deadlock, LeftBehind, virtual_loop

BOTH: tuple[Flavour, ...] = ("suspended", "granted")


async def no_await() -> None:
    pass


async def four_awaits() -> None:
    await no_await()  # does not suspend
    await asyncio.sleep(1)
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await asyncio.sleep(1)
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    done.set_result(None)
    await done  # neither does this
    await asyncio.create_task(asyncio.sleep(1))


def test_it_tries_every_suspension_once_for_each_flavour():
    made = checked = 0

    def make() -> Coroutine[Any, Any, None]:
        nonlocal made
        made += 1
        return four_awaits()

    def check() -> None:
        nonlocal checked
        checked += 1

    assert cancel_at_every_await(make, check) == 4
    assert made == checked == 2 * (4 + 1)


def test_a_coroutine_that_never_suspends_has_nothing_to_cancel():
    assert cancel_at_every_await(no_await) == 0


def test_the_cancel_comes_when_the_awaited_is_pending_or_when_it_has_just_been_granted():
    expectations: dict[Flavour, object] = {"suspended": (1.0, True, False), "granted": (3.0, False, True)}
    for flavour, expected in expectations.items():
        seen: list[object] = []

        async def waits(seen: list[object] = seen) -> None:
            loop = virtual_loop()
            grant: asyncio.Future[str] = loop.create_future()
            await asyncio.sleep(0)
            await asyncio.sleep(1)
            timer = loop.call_later(2, grant.set_result, "permit")
            try:
                await grant
            except asyncio.CancelledError:
                seen.append((loop.time(), grant.cancelled(), grant.done() and not grant.cancelled()))
                timer.cancel()
                raise

        assert cancel_at_every_await(waits, flavours=[flavour]) == 3
        assert seen == [expected]


def test_a_permit_that_is_lost_when_cancelled_after_the_grant_is_found():
    free = 0

    async def acquire(waiters: list[asyncio.Future[None]]) -> None:
        waiter = asyncio.get_running_loop().create_future()
        waiters.append(waiter)
        await waiter  # wrong: a cancel now loses the permit that has been handed over

    async def main() -> None:
        nonlocal free
        free = 0
        waiters: list[asyncio.Future[None]] = []

        def release() -> None:
            nonlocal free
            waiter = waiters.pop()
            if waiter.done():
                free += 1
            else:
                waiter.set_result(None)

        virtual_loop().call_later(1, release)
        await acquire(waiters)
        free += 1

    async def check() -> None:
        await asyncio.sleep(2)
        assert free == 1

    assert cancel_at_every_await(main, check, flavours=["suspended"]) == 1
    with pytest.raises(AssertionError) as caught:
        cancel_at_every_await(main, check)
    assert caught.value.__notes__[0].startswith("cancelled at suspension 1 (granted), in cancelled: ")
    assert "acquire (test_cancellation.py:" in caught.value.__notes__[0]


@pytest.mark.parametrize("flavour", BOTH)
def test_a_swallowed_cancel_is_an_error_unless_it_is_documented(flavour: Flavour):
    async def swallows() -> str:
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            return "granted"
        return "slept"

    with pytest.raises(AssertionError, match="swallowed: it returned 'granted'"):
        cancel_at_every_await(swallows, flavours=[flavour])
    assert cancel_at_every_await(swallows, flavours=[flavour], may_complete=True) == 1


@pytest.mark.parametrize("flavour", BOTH)
def test_a_cancel_that_became_another_error_is_found(flavour: Flavour):
    async def maps() -> None:
        try:
            await asyncio.sleep(1)
        except BaseException as error:
            raise LookupError from error

    with pytest.raises(AssertionError, match="became LookupError") as caught:
        cancel_at_every_await(maps, flavours=[flavour], may_complete=True)
    assert isinstance(caught.value.__cause__, LookupError)


@pytest.mark.parametrize("flavour", BOTH)
def test_a_cancel_request_that_was_taken_back_or_left_is_found(flavour: Flavour):
    def task() -> asyncio.Task[Any]:
        task = asyncio.current_task()
        assert task
        return task

    async def takes_back() -> None:
        try:
            await asyncio.sleep(1)
        finally:
            task().uncancel()

    async def leaves_one() -> None:
        task().cancel()
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            if task().cancelling() == 2:
                raise

    with pytest.raises(AssertionError, match="is 0 in the end and must be 1"):
        cancel_at_every_await(takes_back, flavours=[flavour])
    with pytest.raises(AssertionError, match=r"is \d in the end and must be [01]"):
        cancel_at_every_await(leaves_one, flavours=[flavour])


def test_timeouts_and_task_groups_keep_their_books_when_cancelled():
    async def main() -> None:
        try:
            async with asyncio.timeout(1):
                await asyncio.sleep(2)
        except TimeoutError:
            pass
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(1))
            group.create_task(asyncio.sleep(2))

    assert cancel_at_every_await(main) == 2


def test_a_task_that_is_left_is_found_and_named():
    async def leaves() -> None:
        child = asyncio.create_task(asyncio.sleep(10), name="the child")
        await asyncio.sleep(1)
        child.cancel()
        await asyncio.wait([child])

    with pytest.raises(AssertionError, match=r"tasks are left: .*the child: sleep"):
        cancel_at_every_await(leaves)


def test_a_task_that_the_check_leaves_is_found():
    left = []

    def check() -> None:
        left.append(asyncio.create_task(asyncio.sleep(1)))

    with pytest.raises(LeftBehind):
        cancel_at_every_await(no_await, check)


def test_an_error_of_the_uncancelled_run_is_raised():
    async def fails() -> None:
        await asyncio.sleep(1)
        raise LookupError("in the end")

    with pytest.raises(LookupError, match="in the end") as caught:
        cancel_at_every_await(fails)
    assert caught.value.__notes__ == ["not cancelled: ended before suspension 2"]


def test_an_await_inside_cleaning_up_does_not_count():
    async def main() -> None:
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            await asyncio.sleep(1)
            raise

    assert cancel_at_every_await(main) == 1


def test_suspensions_after_an_error_count():
    async def main() -> None:
        try:
            async with asyncio.timeout(1):
                await asyncio.Event().wait()
        except TimeoutError:
            await asyncio.sleep(1)

    assert cancel_at_every_await(main) == 2


def test_a_hang_after_the_cancel_is_found():
    async def hangs() -> None:
        try:
            await asyncio.sleep(1)
        finally:
            if virtual_loop().time() < 1:
                await asyncio.Event().wait()

    with pytest.raises(Deadlock) as caught:
        cancel_at_every_await(hangs)
    assert caught.value.__notes__[0].startswith("cancelled at suspension 1 (suspended)")


def test_a_coroutine_without_end_is_given_up():
    async def endless() -> None:
        for _ in itertools.count():
            await asyncio.sleep(1)

    with pytest.raises(AssertionError, match="not through after 20"):
        cancel_at_every_await(endless, limit=20)


def test_a_coroutine_that_differs_from_run_to_run_is_refused():
    runs = 0

    async def differs() -> None:
        nonlocal runs
        runs += 1
        for _ in range(1 if runs < 3 else 2):
            await asyncio.sleep(1)

    with pytest.raises(AssertionError, match="not deterministic"):
        cancel_at_every_await(differs)
