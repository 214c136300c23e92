"""The model gateway: an alias's routes tried under one deadline until one answers; every fault survived or told.

A call goes: exact cache → coalescing → routes in their order, each under its own guard and limits → a stale answer.
Until the first content nothing has reached the client, so failing over is invisible; an answer that is not streamed
to its client may fail over to the very end. After content a stream ends with an error, or goes on at the next route
when the alias says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

from failsoft.base.clock import Sources
from failsoft.base.errors import DeadlineExceeded, DownstreamUnavailable, FailsoftError, NotFound
from failsoft.base.events import Event
from failsoft.base.transport import Transport
from failsoft.kernel.breaker import BreakerState
from failsoft.kernel.guard import Kernel
from failsoft.kernel.policy import Policy
from failsoft.kernel.scope import current
from failsoft.kernel.stream import GuardedStream
from failsoft.models.answers import cache_key
from failsoft.models.asking import body_for, continued, least, streams, text_answer
from failsoft.models.assembly import Assembler
from failsoft.models.calls import CallRecord, RouteTried
from failsoft.models.chat_request import ChatRequest
from failsoft.models.chunks import FINISH, USAGE, Chunk
from failsoft.models.failures import Reading, classifier, read_failure
from failsoft.models.limits import LatencyModel, RequestLimits, limits_for
from failsoft.models.routes import Alias, Route
from failsoft.models.staged import StagedChange
from failsoft.models.states import MOMENT, AliasState, RouteState
from failsoft.models.tokens import TokenEstimate
from failsoft.models.upstream import as_chunks, exchange, has_content, request_for
from failsoft.models.whole import ask_whole

__all__ = ["Gateway"]

_OWN_LIMITS: Final = frozenset({"first_item", "idle", "total"})

_ROUNDS: Final = 4
"""How often the routes are gone through for one call while all are cooling down and the budget allows waiting."""


class Gateway:
    """Serves chat completions for its aliases. Use it from one event loop; its guards are the kernel's."""

    def __init__(
        self,
        aliases: Sequence[Alias],
        kernel: Kernel,
        transport: Transport,
        *,
        sources: Sources | None = None,
        learned: Callable[[Route], LatencyModel | None] | None = None,
    ) -> None:
        self.kernel = kernel
        self.transport = transport
        self.sources = sources or kernel.sources
        self.tokens = TokenEstimate()
        self._learned = learned
        self._aliases: dict[str, AliasState] = {}
        policies: dict[str, Policy] = {}
        for alias in aliases:
            if alias.name in self._aliases:
                raise ValueError(f"two aliases are called {alias.name!r}")
            for route in alias.routes:
                if route.text is None and policies.setdefault(route.downstream, route.policy) != route.policy:
                    raise ValueError(f"{alias.name}: another alias guards the same route {route.name!r} otherwise")
            self._aliases[alias.name] = AliasState(alias, self)

    @property
    def aliases(self) -> Mapping[str, Alias]:
        """The aliases by name."""
        return {name: state.alias for name, state in self._aliases.items()}

    def alias(self, name: str) -> Alias:
        """The alias called `name`; raises :class:`~failsoft.base.errors.NotFound` naming those there are."""
        return self._state(name).alias

    def _state(self, name: str) -> AliasState:
        found = self._aliases.get(name)
        if found is None:
            raise NotFound(
                f"there is no model {name[:100]!r}; there are {', '.join(sorted(self._aliases)) or 'none'}",
                param="model",
                details={"models": sorted(self._aliases)},
            )
        return found

    def record(self, request: ChatRequest, *, request_id: str | None = None) -> CallRecord:
        """A fresh record for a call."""
        now = asyncio.get_running_loop().time()
        return CallRecord(request.model, request_id, current.get().tenant, request.stream, now)

    # --- whole answers -------------------------------------------------------------------------------------------

    async def complete(self, request: ChatRequest, record: CallRecord) -> dict[str, Any]:
        """The answer as a ``chat.completion``, under the current deadline.

        Raises the last route's error, mapped, when none serves; see ``docs/failures.md`` for statuses and codes.
        """
        state = self._state(request.model)
        loop = asyncio.get_running_loop()
        key = None
        if state.answers is not None or state.alias.coalesce:
            key = cache_key(request.data, record.tenant, state.alias.name)
        if state.answers is not None and key is not None:
            found = state.answers.fresh(key, loop.time())
            if found is not None:
                record.cache = "hit"
                return self._finish(record, found.result())
            record.cache = "miss"
        try:
            if state.alias.coalesce and key is not None:
                flight = _Shared(self, state, request, record, key)
                answer, served = await state.flights.join(key, flight.fly)
                if served is not record:
                    record.cache = "shared"
                    record.route, record.model, record.degraded = served.route, served.model, served.degraded
            else:
                answer = await self._from_routes(state, request, record)
                self._keep(state, key, answer, record)
        except FailsoftError:
            stale = state.answers.stale(key, loop.time()) if state.answers is not None and key is not None else None
            if stale is None:
                record.ended = loop.time()
                raise
            record.cache, record.degraded = "stale", True
            return self._finish(record, stale.result())
        return self._finish(record, answer)

    def _finish(self, record: CallRecord, answer: dict[str, Any]) -> dict[str, Any]:
        record.ended = asyncio.get_running_loop().time()
        record.usage = answer.get("usage")
        choices = answer.get("choices") or [{}]
        record.finish = choices[0].get("finish_reason")
        record.model = record.model or answer.get("model")
        return answer

    def _keep(self, state: AliasState, key: bytes | None, answer: dict[str, Any], record: CallRecord) -> None:
        if state.answers is not None and key is not None:
            state.answers.put(key, answer, asyncio.get_running_loop().time(), degraded=record.degraded)

    async def _from_routes(self, state: AliasState, request: ChatRequest, record: CallRecord) -> dict[str, Any]:
        async def whole(chosen: RouteState, limits: RequestLimits) -> dict[str, Any]:
            if chosen.guard is not None and not streams(chosen.route, stream=False):
                return await ask_whole(self, chosen, request, limits, record)
            assembler = Assembler(request.n)
            try:
                async with aclosing(self._pieces(chosen, request, limits, record, stream=False)) as pieces:
                    async for piece in pieces:
                        for chunk in piece:
                            assembler.feed(chunk)
            except FailsoftError:
                if not (assembler.finished and assembler.started):
                    raise
                record.back()  # all was said; what failed was the waiting for the last line
            return assembler.result()

        answer: dict[str, Any] = await self._through(state, request, record, whole)
        return answer

    # --- streams -------------------------------------------------------------------------------------------------

    async def stream(self, request: ChatRequest, record: CallRecord) -> AsyncGenerator[list[Chunk], None]:
        """The answer as it comes, in pieces of one or more chunks; the first piece has content in it.

        Raises before the first piece when no route serves. After it, an error means that the stream broke off: it must
        not pass for complete. The usage chunk comes only if the client asked for it.
        """
        state = self._state(request.model)
        loop = asyncio.get_running_loop()
        key = None
        if state.answers is not None:
            key = cache_key(request.data, record.tenant, state.alias.name)
            found = state.answers.fresh(key, loop.time())
            if found is not None:
                record.cache = "hit"
                yield as_chunks(self._finish(record, found.result()), include_usage=request.include_usage)
                return
            record.cache = "miss"
        assembler = Assembler(request.n) if key is not None or state.alias.continue_on_cut else None
        asked = request
        begun = False
        broken: FailsoftError | None = None
        ended: set[int] = set()
        try:
            while True:
                try:
                    opened = await self._through(state, asked, record, self._opener(asked, record), streams=True)
                except FailsoftError as error:
                    if broken is None:
                        raise
                    raise broken from error  # what the client suffers is the cut; nobody could mend it
                record.seam = broken is not None
                settled = False
                try:
                    async with aclosing(opened.pieces) as rest, aclosing(_joined(opened.first, rest)) as pieces:
                        async for piece in pieces:
                            begun = True
                            if assembler is not None:
                                for chunk in piece:
                                    assembler.feed(chunk)
                            ready = self._for_client(piece, request, record, ended)
                            if ready:
                                yield ready
                    settled = True
                    state.stickiness.served(opened.chosen.index, loop.time())
                    break
                except Exception as error:
                    if len(ended) >= request.n:
                        record.back()  # all was said; what failed was the waiting for the last line
                        break
                    settled = True
                    reading = self._note_failure(state, opened.chosen, error, record, opened.began, opened.limits)
                    broken = reading.error
                    if not self._may_continue(state, request, reading, assembler, record):
                        if broken is error:
                            raise
                        raise broken from error
                    assert assembler is not None
                    asked = continued(request, assembler.partial_text)
                finally:
                    if not settled:  # its client went: nothing is to be learned from that
                        state.stickiness.unused(opened.chosen.index)
        except FailsoftError:
            record.ended = loop.time()
            stale = state.answers.stale(key, loop.time()) if state.answers is not None and key is not None else None
            if begun or stale is None:
                raise
            record.cache, record.degraded = "stale", True
            yield as_chunks(self._finish(record, stale.result()), include_usage=request.include_usage)
            return
        record.ended = loop.time()
        if key is not None and assembler is not None and not record.seam:
            self._keep(state, key, assembler.result(), record)

    def _opener(self, request: ChatRequest, record: CallRecord) -> Callable[..., Any]:
        async def open_at(chosen: RouteState, limits: RequestLimits) -> _Opened:
            pieces = self._pieces(chosen, request, limits, record, stream=True)
            began = asyncio.get_running_loop().time()
            try:
                first = await anext(pieces)
            except StopAsyncIteration:
                first = []
            except BaseException:
                await pieces.aclose()
                raise
            return _Opened(chosen, limits, first, pieces, began)

        return open_at

    def _for_client(self, piece: list[Chunk], request: ChatRequest, record: CallRecord, ended: set[int]) -> list[Chunk]:
        """Takes out what the client did not ask for, and notes what passes, and which choices have `ended`."""
        kept = []
        for chunk in piece:
            kinds = chunk.kinds
            if kinds & USAGE and chunk.data is not None:
                record.usage = chunk.data["usage"]
                if not request.include_usage and not chunk.data.get("choices"):
                    continue
            if kinds & FINISH and chunk.data is not None:
                for one in chunk.data["choices"]:
                    if one.get("finish_reason"):
                        record.finish = one["finish_reason"]
                        ended.add(one.get("index") or 0)
            kept.append(chunk)
        return kept

    def _may_continue(
        self,
        state: AliasState,
        request: ChatRequest,
        reading: Reading,
        assembler: Assembler | None,
        record: CallRecord,
    ) -> bool:
        """Whether another route can go on where this one broke off: with the text of one choice, and nothing else.

        Parts of tool calls cannot be handed over, and a JSON answer begun by one model is not continued by another.
        """
        return (
            state.alias.continue_on_cut
            and reading.next_route
            and request.n == 1
            and (request.data.get("response_format") or {}).get("type", "text") == "text"
            and assembler is not None
            and assembler.only_text
            and len({one.route for one in record.tried}) < len(state.routes)
        )

    # --- routes --------------------------------------------------------------------------------------------------

    async def _through(
        self,
        state: AliasState,
        request: ChatRequest,
        record: CallRecord,
        use: Callable[..., Any],
        *,
        streams: bool = False,
    ) -> Any:
        """Goes through the alias's routes until ``use(route, limits)`` gives an answer; the routes that the record has
        already are left out. With `streams` the answer has only begun: whoever takes it says how the route did.
        """
        loop = asyncio.get_running_loop()
        record.tokens = tokens = self.tokens.raw_messages(request.messages, tools=request.tools)
        failed: list[Reading] = []
        used = {one.route for one in record.tried}
        for _ in range(_ROUNDS):
            order = [i for i in state.stickiness.order(loop.time()) if state.routes[i].route.name not in used]
            tried = 0
            while True:
                if tried == len(order):
                    # the better ones that the alias has left are no worse now than having nothing
                    spare = (i for i in state.stickiness.spare(loop.time()) if i not in order)
                    order.extend(i for i in spare if state.routes[i].route.name not in used)
                    if tried == len(order):
                        break
                index, later = order[tried], order[tried + 1 :]
                tried += 1
                chosen = state.routes[index]
                try:
                    remaining = current.get().wanted_until - loop.time()
                    if remaining <= 0:
                        raise DeadlineExceeded("the budget ended before a route answered")
                    remaining -= min(MOMENT, remaining / 10)
                    behind = [state.routes[i] for i in later]
                    final = streams and not state.alias.continue_on_cut
                    limits = self._limits(chosen, request, tokens, remaining, behind, stream=streams, final=final)
                    record.limits = limits.which
                    began = loop.time()
                    try:
                        answer = await use(chosen, limits)
                    except Exception as error:
                        reading = self._note_failure(state, chosen, error, record, began, limits)
                        failed.append(reading)
                        if not reading.next_route:
                            raise reading.error from error
                        continue
                except BaseException:
                    self._unused(state, (index, *later))
                    raise
                self._unused(state, later)
                if not streams:
                    state.stickiness.served(index, loop.time())
                record.route, record.model = chosen.route.name, chosen.route.model or record.model
                record.degraded = index > 0 and not chosen.route.equivalent
                return answer
            wait = self._cooling(state, failed, loop.time())
            if wait is None or wait >= current.get().wanted_until - loop.time() - min(s.usual for s in state.routes):
                break
            await asyncio.sleep(wait)
        raise self._all_out(state, failed)

    def _limits(
        self,
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
        count = int(tokens * self.tokens.ratio(route.model)) + 1
        most, load = least(request.max_tokens, route.max_tokens), chosen.load.load()
        learned = None if self._learned is None else self._learned(route)
        # what later routes usually need is kept for them, but never more than an equal share of what there is
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
        return RequestLimits(limits.connect, limits.first, limits.idle, limits.total, limits.which, call, lent)

    async def _pieces(
        self, chosen: RouteState, request: ChatRequest, limits: RequestLimits, record: CallRecord, *, stream: bool
    ) -> AsyncGenerator[list[Chunk], None]:
        """One route's answer under its guard."""
        route, guard = chosen.route, chosen.guard
        if guard is None:
            yield text_answer(route, request, self.sources)
            return
        loop = asyncio.get_running_loop()
        began = loop.time()
        body = body_for(route, request, self.tokens, stream=stream)
        upstream_streams = streams(route, stream=stream)

        waiting = True

        def attempt() -> AsyncIterator[list[Chunk]]:
            nonlocal waiting
            if waiting:
                record.queued(loop.time() - began)
                waiting = False
            record.attempts += 1
            record.away()
            sent = request_for(
                route,
                body,
                stream=upstream_streams,
                request_id=record.request_id,
                total=limits.total,
                connect=route.limits.connect,
            )
            return exchange(self.transport, route, sent, n=request.n, wall=self.sources.wall())

        # only a prompt that went out as it was estimated can correct the estimate
        as_asked = route.system is None and route.max_input_tokens is None
        chosen.load.started()
        try:
            pieces: GuardedStream[list[Chunk]] = guard.stream(
                attempt,
                first_item=limits.first,
                idle=limits.idle,
                total=limits.total,
                timeout=limits.call,
                lent=limits.lent,
                content=has_content,
                classify=classifier,
            )
            async with pieces:
                assert pieces.started_at is not None
                record.back()
                first_at = pieces.first_item_at
                if first_at is not None:
                    record.first = first_at - pieces.started_at
                async for piece in pieces:
                    record.back()
                    for chunk in piece:
                        if chunk.kinds & USAGE and chunk.data is not None and as_asked and route.model is not None:
                            usage = chunk.data["usage"]
                            self.tokens.observe(route.model, record.tokens, usage.get("prompt_tokens"))
                    yield piece
                    record.away()
                record.back()
                now = loop.time()
                if record.first is not None and first_at is not None:
                    record.decode = now - first_at
                chosen.staged.success(now - pieces.started_at, now)
        finally:
            if waiting:
                record.queued(loop.time() - began)
            chosen.load.ended()

    # --- failures ------------------------------------------------------------------------------------------------

    def _note_failure(
        self,
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
        record.tried.append(RouteTried(chosen.route.name, reading.name, reading.code, now - began))
        limit = getattr(reading.error, "limit", None)
        if limit is not None:
            record.fired = limit
        blamed = limit is None or (limit in _OWN_LIMITS and limit not in limits.lent)
        sticky = state.stickiness
        if reading.take_out is not None:
            sticky.take_out(chosen.index, now, reading.take_out)
            kind = "route.alert" if reading.alert else "route.taken_out"
            self._tell(kind, state, chosen, {"reading": reading.name, "seconds": reading.take_out})
        elif chosen.guard is not None and chosen.guard.breaker.state is BreakerState.OPEN:
            sticky.breaker_opened(chosen.index, now)
        elif blamed and reading.counts in {"failed", "timeout"}:
            sticky.failed(chosen.index, now, timeout=reading.counts == "timeout")
        else:
            sticky.unused(chosen.index)
        if blamed and reading.staged:
            chosen.staged.timeout(now - began, now)
        self._tell("route.failed", state, chosen, {"reading": reading.name, "code": reading.code})
        return reading

    def _unused(self, state: AliasState, indexes: Sequence[int]) -> None:
        for index in indexes:
            state.stickiness.unused(index)

    def _cooling(self, state: AliasState, failed: Sequence[Reading], now: float) -> float | None:
        """Seconds until the first of the routes that only cool down may be tried; None when waiting is of no use."""
        waits = [state.stickiness.next_chance(now)] if not failed else []
        open_for = (one.guard.breaker.retry_in(now) for one in state.routes if one.guard is not None)
        waits.extend(wait for wait in open_for if wait is not None)
        if failed and any(reading.name != "breaker_open" for reading in failed):
            return None
        return max(0.001, min(waits)) if waits else None

    def _all_out(self, state: AliasState, failed: Sequence[Reading]) -> FailsoftError:
        """The error when no route serves: the last one that says more than that we did not even ask."""
        now = asyncio.get_running_loop().time()
        telling = [reading for reading in failed if reading.name not in {"breaker_open", "queue_full"}]
        if telling:
            error = telling[-1].error
            error.__cause__ = None
            return error
        retry_after = [reading.retry_after for reading in failed if reading.retry_after is not None]
        if not failed:
            retry_after.append(state.stickiness.next_chance(now))
        return DownstreamUnavailable(
            f"no route of {state.alias.name} can be tried now",
            retry_after=min(retry_after, default=None),
            details={"fault": "all_out", "routes": [route.route.name for route in state.routes]},
        )

    # --- telling -------------------------------------------------------------------------------------------------

    def on_staged(self, alias: str, route: str) -> Callable[[StagedChange], None]:
        """Tells listeners about a level that was entered or left."""

        def tell(change: StagedChange) -> None:
            self.kernel.bus.emit(
                Event(f"staged.{change.level}", change.at, route, data={"alias": alias, **change._asdict()})
            )

        return tell

    def _tell(self, kind: str, state: AliasState, chosen: RouteState, data: dict[str, Any]) -> None:
        if self.kernel.bus.listeners:
            scope = current.get()
            now = asyncio.get_running_loop().time()
            told = {"alias": state.alias.name, **data}
            self.kernel.bus.emit(
                Event(kind, now, chosen.route.downstream, scope.run, scope.task, scope.tenant, data=told)
            )

    def __repr__(self) -> str:
        return f"<Gateway {', '.join(self._aliases) or 'no aliases'}>"


class _Shared:
    """A call that others may join: keeps its answer for all of them, and tells them whose record is its own."""

    def __init__(
        self, gateway: Gateway, state: AliasState, request: ChatRequest, record: CallRecord, key: bytes
    ) -> None:
        self.gateway, self.state, self.request, self.record, self.key = gateway, state, request, record, key

    async def fly(self) -> tuple[dict[str, Any], CallRecord]:
        answer = await self.gateway._from_routes(self.state, self.request, self.record)
        self.gateway._keep(self.state, self.key, answer, self.record)
        return answer, self.record


class _Opened:
    """A stream that has begun."""

    __slots__ = ("began", "chosen", "first", "limits", "pieces")

    def __init__(
        self,
        chosen: RouteState,
        limits: RequestLimits,
        first: list[Chunk],
        pieces: AsyncGenerator[list[Chunk], None],
        began: float,
    ) -> None:
        self.chosen = chosen
        self.limits = limits
        self.first = first
        self.pieces = pieces
        self.began = began


async def _joined(first: list[Chunk], rest: AsyncGenerator[list[Chunk], None]) -> AsyncGenerator[list[Chunk], None]:
    if first:
        yield first
    async for piece in rest:
        yield piece
