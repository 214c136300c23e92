"""The model gateway: an alias's routes tried under one deadline until one answers; every fault survived or told.

A call goes: exact cache → coalescing → routes in their order, each under its own guard and limits → a stale answer.
Until the first content nothing has reached the client, so failing over is invisible; an answer that is not streamed
to its client may fail over to the very end. After content a stream ends with an error, or goes on at the next route
when the alias says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, Final

from failsoft.base.clock import Sources
from failsoft.base.errors import FailsoftError, NotFound
from failsoft.base.events import Event
from failsoft.base.transport import Transport
from failsoft.kernel.guard import Kernel
from failsoft.kernel.policy import Policy
from failsoft.kernel.scope import current
from failsoft.models.answers import cache_key
from failsoft.models.asking import continued, streams
from failsoft.models.assembly import Assembler
from failsoft.models.calls import CallRecord
from failsoft.models.chat_request import ChatRequest
from failsoft.models.chunks import FINISH, USAGE, Chunk
from failsoft.models.failures import Reading
from failsoft.models.level3 import Level3, Level3Change
from failsoft.models.limits import LatencyModel, RequestLimits
from failsoft.models.passing import note_failure, through
from failsoft.models.pieces import Piece, Run
from failsoft.models.routes import Alias, Route
from failsoft.models.staged import StagedChange
from failsoft.models.states import AliasState, RouteState
from failsoft.models.streaming import OpenedStream, assemble, open_stream
from failsoft.models.tokens import TokenEstimate
from failsoft.models.upstream import as_piece
from failsoft.models.webhook import Webhook
from failsoft.models.whole import ask_whole

__all__ = ["Gateway"]


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
        webhook: Webhook | None = None,
    ) -> None:
        self.kernel = kernel
        self.transport = transport
        self.sources = sources or kernel.sources
        self.tokens = TokenEstimate()
        self.webhook = webhook
        """Who is told what people should know."""
        self.learned = learned
        """What was learned of a route's times, if anything was."""
        self.level3 = Level3(on_change=self._on_level3)
        """Whether models fail as a whole."""
        self._aliases: dict[str, AliasState] = {}
        self.reconfigure(aliases)

    def reconfigure(self, aliases: Sequence[Alias]) -> None:
        """Takes these aliases in place of those there are; calls in flight end at the routes that they began with.

        What is about the same upstream still keeps what is known of it: its guard, its levels, which route an alias is
        on. Cached answers stay while the same routes would give them. Raises ``ValueError``, and changes nothing, when
        the aliases contradict each other.
        """
        policies: dict[str, Policy] = {}
        names: set[str] = set()
        for alias in aliases:
            if alias.name in names:
                raise ValueError(f"two aliases are called {alias.name!r}")
            names.add(alias.name)
            for route in alias.routes:
                if route.text is None and policies.setdefault(route.downstream, route.policy) != route.policy:
                    raise ValueError(f"{alias.name}: another alias guards the same route {route.name!r} otherwise")
        before = self._aliases
        self._aliases = {alias.name: AliasState(alias, self, before.get(alias.name)) for alias in aliases}
        for state in before.values():
            for known in state.routes:
                if known.guard is not None and known.guard.name not in policies:
                    self.kernel.retire(known.guard.name)

    @property
    def aliases(self) -> Mapping[str, Alias]:
        """The aliases by name."""
        return {name: state.alias for name, state in self._aliases.items()}

    def serves(self, name: str) -> bool:
        """Whether there is an alias called `name`."""
        return name in self._aliases

    def alias(self, name: str) -> Alias:
        """The alias called `name`; raises :class:`~failsoft.base.errors.NotFound` naming those there are."""
        return self.state(name).alias

    def state(self, name: str) -> AliasState:
        """What is kept of the alias called `name`; raises as :meth:`alias` does."""
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
        state = self.state(request.model)
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
                answer = await through(self, state, request, record, _whole)
                if key is not None:
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

    # --- streams -------------------------------------------------------------------------------------------------

    async def stream(self, request: ChatRequest, record: CallRecord) -> AsyncGenerator[Piece, None]:
        """The answer as it comes, in pieces of one or more chunks; the first piece has content in it.

        Raises before the first piece when no route serves. After it, an error means that the stream broke off: it must
        not pass for complete. The usage chunk comes only if the client asked for it.
        """
        state = self.state(request.model)
        loop = asyncio.get_running_loop()
        key = None
        if state.answers is not None:
            key = cache_key(request.data, record.tenant, state.alias.name)
            found = state.answers.fresh(key, loop.time())
            if found is not None:
                record.cache = "hit"
                yield as_piece(self._finish(record, found.result()), include_usage=request.include_usage)
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
                    opened = await through(self, state, asked, record, open_stream, streaming=True)
                except FailsoftError as error:
                    if broken is None:
                        raise
                    raise broken from error  # what the client suffers is the cut; nobody could mend it
                record.seam = broken is not None
                settled = False
                try:
                    async for piece in opened.pieces:
                        record.back()
                        begun = True
                        if assembler is not None:
                            assembler.take(piece)
                        if piece.kinds & _NOTED:
                            _note(piece, request, record, ended, opened)
                        if piece.items:
                            yield piece
                        record.away()
                    record.back()
                    opened.ended()
                    settled = True
                    state.stickiness.served(opened.chosen.index, loop.time())
                    if opened.chosen.guard is not None:
                        self.level3.record(True, loop.time())
                    break
                except Exception as error:
                    if len(ended) >= request.n:
                        record.back()  # all was said; what failed was the waiting for the last line
                        break
                    settled = True
                    reading = note_failure(self, state, opened.chosen, error, record, opened.began, opened.limits)
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
                    await opened.aclose()
        except FailsoftError:
            record.ended = loop.time()
            stale = state.answers.stale(key, loop.time()) if state.answers is not None and key is not None else None
            if begun or stale is None:
                raise
            record.cache, record.degraded = "stale", True
            yield as_piece(self._finish(record, stale.result()), include_usage=request.include_usage)
            return
        record.ended = loop.time()
        if key is not None and assembler is not None and not record.seam:
            self._keep(state, key, assembler.result(), record)

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

    # --- telling -------------------------------------------------------------------------------------------------

    def _on_level3(self, change: Level3Change) -> None:
        data = {"level": "L3", "entered": change.on, "share": round(change.share, 4)}
        self.kernel.bus.emit(Event("staged.L3", change.at, None, data=data))

    def on_staged(self, alias: str, route: str) -> Callable[[StagedChange], None]:
        """Tells listeners about a level that was entered or left."""

        def tell(change: StagedChange) -> None:
            self.kernel.bus.emit(
                Event(f"staged.{change.level}", change.at, route, data={"alias": alias, **change._asdict()})
            )
            if self.webhook is not None:
                facts = {name: value for name, value in change._asdict().items() if name not in {"level", "at"}}
                self.webhook.tell(change.level, alias, route, facts)

        return tell

    def alert(self, state: AliasState, chosen: RouteState, data: dict[str, Any]) -> None:
        """Tells people that a route needs them."""
        self.tell("route.alert", state, chosen, data)
        if self.webhook is not None:
            self.webhook.tell("alert", state.alias.name, chosen.route.name, data)

    def tell(self, kind: str, state: AliasState, chosen: RouteState, data: dict[str, Any]) -> None:
        """Tells listeners something about a route."""
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
        answer = await through(self.gateway, self.state, self.request, self.record, _whole)
        self.gateway._keep(self.state, self.key, answer, self.record)
        return answer, self.record


async def _whole(
    gateway: Gateway, chosen: RouteState, request: ChatRequest, limits: RequestLimits, record: CallRecord
) -> dict[str, Any]:
    """A route's whole answer, however it comes."""
    if chosen.guard is None or streams(chosen.route, stream=False):
        return await assemble(gateway, chosen, request, limits, record)
    return await ask_whole(gateway, chosen, request, limits, record)


_NOTED: Final = USAGE | FINISH


def _note(piece: Piece, request: ChatRequest, record: CallRecord, ended: set[int], opened: OpenedStream) -> None:
    """Notes what passes, and which choices have `ended`; takes out what the client did not ask for."""
    kept: list[Chunk | Run] = []
    for item in piece.items:
        if isinstance(item, Chunk) and (data := item.data) is not None:
            if item.kinds & USAGE:
                record.usage = data["usage"]
                opened.reported(data["usage"])
                if not request.include_usage and not data.get("choices"):
                    continue
            if item.kinds & FINISH:
                for one in data["choices"]:
                    if one.get("finish_reason"):
                        record.finish = one["finish_reason"]
                        ended.add(one.get("index") or 0)
        kept.append(item)
    if len(kept) < len(piece.items):
        piece.keep(kept)
