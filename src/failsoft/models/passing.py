"""Going through an alias's routes until one answers: in which order, within which limits, and what a failure means."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from failsoft.base.errors import DeadlineExceeded, DownstreamUnavailable, FailsoftError
from failsoft.kernel.breaker import BreakerState
from failsoft.kernel.scope import current, scope
from failsoft.models.asking import least, streams
from failsoft.models.calls import CallRecord, RouteTried
from failsoft.models.chat_request import ChatRequest
from failsoft.models.failures import Reading, read_failure
from failsoft.models.limits import RequestLimits, limits_for
from failsoft.models.states import MOMENT, AliasState, RouteState

if TYPE_CHECKING:
    from failsoft.models.gateway import Gateway

__all__ = ["Use", "note_failure", "through"]

T = TypeVar("T")

Use = Callable[["Gateway", RouteState, ChatRequest, RequestLimits, CallRecord], Awaitable[T]]
"""What is done at a route."""

_OWN_LIMITS: Final = frozenset({"first_item", "idle", "total"})

_ROUNDS: Final = 4
"""How often the routes are gone through for one call while all are cooling down and the budget allows waiting."""

_new = tuple.__new__


async def through(
    gateway: Gateway,
    state: AliasState,
    request: ChatRequest,
    record: CallRecord,
    use: Use[T],
    *,
    streaming: bool = False,
) -> T:
    """What `use` makes at the first route that serves; routes that the record has already are left out.

    With `streaming` the answer has only begun: whoever takes it says how the route did. Raises the mapped error of the
    last route when none serves.
    """
    loop = asyncio.get_running_loop()
    record.tokens = tokens = gateway.tokens.raw_messages(request.messages, tools=request.tools)
    sticky, routes = state.stickiness, state.routes
    failed: list[Reading] = []
    used = {one.route for one in record.tried} if record.tried else ()
    for _ in range(_ROUNDS):
        order = sticky.order(loop.time())
        if used:
            order = [i for i in order if routes[i].route.name not in used]
        tried = 0
        while True:
            if tried == len(order):
                # the better ones that the alias has left are no worse now than having nothing
                spare = (i for i in sticky.spare(loop.time()) if i not in order)
                order.extend(i for i in spare if routes[i].route.name not in used)
                if tried == len(order):
                    break
            index, later = order[tried], order[tried + 1 :]
            tried += 1
            chosen = routes[index]
            try:
                began = loop.time()
                remaining = current.get().wanted_until - began
                if remaining <= 0:
                    raise DeadlineExceeded("the budget ended before a route answered")
                remaining -= min(MOMENT, remaining / 10)
                behind = [routes[i] for i in later]
                final = streaming and not state.alias.continue_on_cut
                limits = _limits(gateway, chosen, request, tokens, remaining, behind, stream=streaming, final=final)
                record.limits = limits.which
                try:
                    if index == 0:
                        answer = await use(gateway, chosen, request, limits, record)
                    else:  # ranks below those whose first choice this route is, and gets a part of its permits only
                        with scope(fallback=True):
                            answer = await use(gateway, chosen, request, limits, record)
                except Exception as error:
                    failed.append(note_failure(gateway, state, chosen, error, record, began, limits))
                    if not failed[-1].next_route:
                        raise _last(failed) from error
                    continue
            except BaseException:
                sticky.unused(index)
                for one in later:
                    sticky.unused(one)
                raise
            for one in later:
                sticky.unused(one)
            if not streaming:
                sticky.served(index, loop.time())
                if chosen.guard is not None:
                    gateway.level3.record(True, loop.time())
            failed.clear()  # their errors know this frame: only the collector would free the two
            route = chosen.route
            record.route, record.model = route.name, route.model or record.model
            record.degraded = index > 0 and not route.equivalent
            return answer
        wait = _cooling(state, failed, loop.time())
        if wait is None or wait >= current.get().wanted_until - loop.time() - min(one.usual for one in routes):
            break
        await asyncio.sleep(wait)
    raise _all_out(state, failed)


def _last(failed: list[Reading]) -> FailsoftError:
    """The last failure's error; `failed` is emptied, so that the error and the frame it goes through part."""
    error = failed[-1].error
    failed.clear()
    return error


def _limits(
    gateway: Gateway,
    chosen: RouteState,
    request: ChatRequest,
    tokens: float,
    remaining: float,
    later: Sequence[RouteState],
    *,
    stream: bool,
    final: bool,
) -> RequestLimits:
    """The limits of one route, for a client that wants a `stream` or not; `final`: once it has begun to answer, no
    later route can take over.
    """
    route = chosen.route
    count = int(tokens * gateway.tokens.ratio(route.model)) + 1
    most, load = least(request.max_tokens, route.max_tokens), chosen.load.load()
    learned = None if gateway.learned is None else gateway.learned(route)
    reserve = 0.0
    if later:  # what they usually need is kept for them, but never more than an equal share of what there is
        reserve = min(sum(one.usual for one in later), remaining * len(later) / (len(later) + 1))
    limits = limits_for(route.limits, count, most, load, remaining, reserve, last=not later, learned=learned)
    call = limits.total
    if final and reserve:
        whole = limits_for(route.limits, count, most, load, remaining, learned=learned)
        which = (limits.which[0], whole.which[1], whole.which[2])
        limits = limits._replace(idle=whole.idle, total=whole.total, which=which)
    call += min(MOMENT, call / 10)
    shortened = chosen.staged.limit
    if shortened is not None and shortened < limits.total:
        limits = limits._replace(
            total=shortened,
            first=min(limits.first, shortened),
            idle=min(limits.idle, shortened),
            which=(limits.which[0], limits.which[1], "staged"),
        )
    lent = chosen.lent(limits, whole=not streams(route, stream=stream))
    return _new(RequestLimits, (*limits[:5], call, lent, any(one.guard is not None for one in later)))


def note_failure(
    gateway: Gateway,
    state: AliasState,
    chosen: RouteState,
    error: BaseException,
    record: CallRecord,
    began: float,
    limits: RequestLimits,
) -> Reading:
    """Reads a failure and tells everybody whose business it is."""
    record.back()
    record.raw = None
    now = asyncio.get_running_loop().time()
    reading = read_failure(error)
    chosen.scrub(reading.error)
    record.tried.append(RouteTried(chosen.route.name, reading.name, reading.code, now - began))
    limit = getattr(reading.error, "limit", None)
    if limit is not None:
        record.fired = limit
    blamed = limit is None or (limit in _OWN_LIMITS and limit not in limits.lent)
    sticky = state.stickiness
    if blamed and reading.counts in {"failed", "timeout"}:
        gateway.level3.record(False, now)
    if reading.take_out is not None:
        sticky.take_out(chosen.index, now, reading.take_out)
        if not reading.alert:
            gateway.tell("route.taken_out", state, chosen, {"reading": reading.name, "seconds": reading.take_out})
    elif chosen.guard is not None and chosen.guard.breaker.state is BreakerState.OPEN:
        sticky.breaker_opened(chosen.index, now)
    elif blamed and (reading.counts in {"failed", "timeout"} or reading.suspicious):
        # an empty answer is no reason to open the breaker for all, but a route that gives nothing else is left
        sticky.failed(chosen.index, now, timeout=reading.counts == "timeout")
    else:
        sticky.unused(chosen.index)
    if reading.alert:
        gateway.alert(state, chosen, {"reading": reading.name, "code": reading.code, "seconds": reading.take_out})
    if blamed and reading.staged:
        chosen.staged.timeout(now - began, now)
    gateway.tell("route.failed", state, chosen, {"reading": reading.name, "code": reading.code})
    return reading


def _cooling(state: AliasState, failed: Sequence[Reading], now: float) -> float | None:
    """Seconds until the first of the routes that only cool down may be tried; None when waiting is of no use."""
    waits = [state.stickiness.next_chance(now)] if not failed else []
    open_for = (one.guard.breaker.retry_in(now) for one in state.routes if one.guard is not None)
    waits.extend(wait for wait in open_for if wait is not None)
    if failed and any(reading.name != "breaker_open" for reading in failed):
        return None
    return max(0.001, min(waits)) if waits else None


def _all_out(state: AliasState, failed: list[Reading]) -> FailsoftError:
    """The error when no route serves: the last one that says more than that we did not even ask. Empties `failed`."""
    now = asyncio.get_running_loop().time()
    telling = [reading for reading in failed if reading.name not in {"breaker_open", "queue_full"}]
    if telling:
        error = telling[-1].error
        error.__cause__ = None
        failed.clear()
        return error
    retry_after = [reading.retry_after for reading in failed if reading.retry_after is not None]
    if not failed:
        retry_after.append(state.stickiness.next_chance(now))
    return DownstreamUnavailable(
        f"no route of {state.alias.name} can be tried now",
        retry_after=min(retry_after, default=None),
        details={"fault": "all_out", "routes": [route.route.name for route in state.routes]},
    )
