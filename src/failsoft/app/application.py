"""The composition root: the one place where settings, guards, agents, tools and the store meet.

::

    async with App(settings, agents=[analyst]) as app:
        result = await app.ask("Compare Q3 revenue per region with Q2", budget=5.0)

Over 600 lines because everything meets here and nowhere else: what is more than putting together is in the parts.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import os
import socket
from collections import Counter, OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeVar

from failsoft.app.asking import budget_of, check_input, number, usual_budget
from failsoft.app.paging import pager
from failsoft.app.wiring import durable_limits_of, equipped, golden_of, limits_of
from failsoft.base.clock import Sources
from failsoft.base.errors import (
    FailsoftError,
    IdempotencyConflict,
    QueueFull,
    RunCancelled,
    StoreConflict,
    StoreError,
    UnknownAgent,
)
from failsoft.base.events import Event, EventBus
from failsoft.base.messages import Message
from failsoft.base.tracing import current_trace, own_trace
from failsoft.base.transport import Transport
from failsoft.config import Settings
from failsoft.kernel.classify import as_error
from failsoft.kernel.deadline import remaining
from failsoft.kernel.guard import Guard, Kernel
from failsoft.kernel.scope import ROOT, current
from failsoft.kernel.watchdog import LoopWatchdog
from failsoft.runs.agents import Agent, AgentRegistry
from failsoft.runs.choosing import AUTO, choose
from failsoft.runs.crew import Crew, Orphan, within
from failsoft.runs.doors import Doors
from failsoft.runs.doubts import Doubts
from failsoft.runs.durable import Durable, DurableLimits
from failsoft.runs.facts import facts_of
from failsoft.runs.forecasts import Forecasts, ForecastStatistics
from failsoft.runs.handle import RunHandle
from failsoft.runs.limits import Grace, RunLimits, RunParts
from failsoft.runs.pace import Pace
from failsoft.runs.progress import History
from failsoft.runs.recorder import Recorder, RecorderStatistics
from failsoft.runs.result import RunRequest, RunResult
from failsoft.runs.resume import Resumed, request_of
from failsoft.runs.review import Reviews
from failsoft.runs.run import Run, body_hash
from failsoft.runs.runners import TaskRunner
from failsoft.runs.sessions import Sessions
from failsoft.runs.state import RunState
from failsoft.stores.memory import MemoryStore
from failsoft.stores.protocols import AppendEvents, FinishRun, RunStore, StoredEvent, StoredRun, Write
from failsoft.telemetry.burn import Burn, Burning, BurnPolicy
from failsoft.telemetry.diagnosis import Diagnosis, Window, diagnose, summarise
from failsoft.telemetry.metrics import RunMetrics
from failsoft.telemetry.timeline import Timeline
from failsoft.tools.registry import ToolSource
from failsoft.tools.stale import StaleResults

if TYPE_CHECKING:
    from pydantic import SecretStr

    from failsoft.models.gateway import Gateway
    from failsoft.models.webhook import Webhook
    from failsoft.runs.chooser import Chooser
    from failsoft.runs.golden import GoldenAnswers

__all__ = ["App", "AppStatistics"]

_log = logging.getLogger(__name__)

T = TypeVar("T")

_READING: Final = 2.0
"""Seconds for which somebody who asks waits for the store."""
_REMEMBERED: Final = 1_000
_REMEMBERED_BYTES: Final = 256 << 20
"""Ended runs whose handles are kept: how many at most, and about how much memory their results may hold."""


@dataclass(frozen=True, slots=True)
class AppStatistics:
    """Figures since the start: runs by their end, runs running now, tasks left behind, what the recorder says, and how
    wrong the estimates of runs' times were.
    """

    running: int
    ended: Mapping[str, int]
    left_behind: int
    recorder: RecorderStatistics | None
    forecasts: ForecastStatistics | None = None


class App:
    """Everything that answers questions, in one event loop.

    ``store`` is a store, ``"memory"`` or ``"off"``; an app closes only a store that it made itself. ``kernel`` may be
    shared to share guards. ``runners`` serve kinds of tasks other than tools. ``limits`` and ``durable`` (background
    runs, approvals, what is kept) are made from the settings when None.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        agents: Iterable[Agent] = (),
        store: RunStore | Literal["memory", "off"] = "memory",
        kernel: Kernel | None = None,
        bus: EventBus | None = None,
        sources: Sources | None = None,
        limits: RunLimits | None = None,
        durable: DurableLimits | None = None,
        runners: Mapping[str, TaskRunner] | None = None,
        golden: GoldenAnswers | None = None,
    ) -> None:
        self.settings = settings if settings is not None else Settings()
        self.sources = sources or (kernel.sources if kernel is not None else Sources())
        self.bus = bus or (kernel.bus if kernel is not None else EventBus())
        self.kernel = kernel or Kernel(bus=self.bus, sources=self.sources)
        self.limits = limits or limits_of(self.settings)
        self._durable_limits = durable or durable_limits_of(self.settings)
        self.durable: Durable | None = None
        """What makes runs outlive requests and processes; None until the app runs."""
        self.agents = AgentRegistry(equipped(agents, self.settings), default=self.settings.agent)
        self.doors = Doors(lambda name: self.agents.get(name).breaker, self.bus, self.sources, self.kernel.probes)
        """The breakers of the agents."""
        self._own_store = isinstance(store, str)
        self.store: RunStore | None = None if store == "off" else MemoryStore() if store == "memory" else store
        self.history = History()
        self.sessions = Sessions()
        self.forecasts: Forecasts | None = None
        """How long running runs will take, and how wrong that was; there while the app runs."""
        self._runners = runners
        self._grace = Grace()
        self._node = f"{socket.gethostname()}:{os.getpid()}:{self.sources.new_id('node')[-8:]}"
        self._active: dict[str, Run] = {}
        self._left: list[Run] = []
        self._remembered: OrderedDict[str, Run] = OrderedDict()
        self._weights: dict[str, int] = {}
        self._held = 0
        self._keys: dict[tuple[str | None, str], tuple[str, str]] = {}
        self._ended: Counter[str] = Counter()
        self._crew: Crew | None = None
        self._recorder: Recorder | None = None
        self._parts: RunParts | None = None
        self._closing = False
        self._transport: Transport | None = None
        self._pagers: list[Webhook] = []
        self._alarm: Callable[[dict[str, Any]], None] | None = None
        self._watchdog = LoopWatchdog(self.bus, kernel=self.kernel)
        self._timeline = Timeline()
        self.bus.add(self._timeline.hear, only=self._timeline.hears)
        self.metrics = RunMetrics(Burn(BurnPolicy(self.settings.alarms.timed_out)), self._burning)
        """What runs, breakers and the loop have done, for a scrape."""
        self.bus.add(self.metrics.hear, only=self.metrics.hears)
        self.gateway: Gateway | None = self._made_gateway()
        """The model gateway, when models are configured."""
        self.chooser = self._made_chooser()
        """Who chooses the agent when rules cannot, if anybody does."""
        self.traced: float | None = None
        """The share of runs whose trace is sampled, as who exports them says; None while nobody does."""
        self.golden = golden if golden is not None else golden_of(self.settings)
        """Prepared answers, served first while models fail as a whole."""
        self.models_failing: Callable[[], bool] = self._models_failing
        """Whether they do: the gateway's judgement, unless replaced before the start."""
        self._guards()

    def _guards(self) -> None:
        """A guard for every downstream of every tool, by the settings' policy for it."""
        for agent in self.agents:
            for spec in agent.tools.specs:
                default = "external" if spec.kind == "external" else "core"
                self.kernel.guard(spec.downstream, self.settings.policy(spec.downstream, default=default))
        for source in self._tool_sources():
            self.kernel.guard(source.downstream, self.settings.policy(source.downstream, default="external"))

    def _tool_sources(self) -> list[ToolSource]:
        """The tool servers of all agents, each once."""
        return list(dict.fromkeys(source for agent in self.agents for source in agent.tools.sources))

    def look_after(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Runs `work` until the app ends, which cancels it."""
        assert self._crew is not None
        _ = self._crew.start(work, name=name, context=contextvars.Context())

    async def _start_tool_sources(self, crew: Crew) -> None:
        """Starts the tool servers and waits a moment for them; who is late is there when it comes."""

        async def wait(source: ToolSource) -> None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(source.wait):
                    await source.ready()

        sources = self._tool_sources()
        for source in sources:
            _ = crew.start(source.run(), name=f"tools of {source.name}", context=contextvars.Context())
        await asyncio.gather(*map(wait, sources))

    def _models_failing(self) -> bool:
        return self.gateway is not None and self.gateway.level3.on(asyncio.get_running_loop().time())

    def _made_gateway(self) -> Gateway | None:
        if not (self.settings.models or self.settings.keys):
            return None
        from failsoft.models.gateway import Gateway
        from failsoft.transports.aiohttp_transport import AiohttpTransport

        self._transport = AiohttpTransport(connections=self.settings.gateway.connections)
        return Gateway(self.settings.aliases(), self.kernel, self._transport, sources=self.sources)

    def _made_chooser(self) -> Chooser | None:
        name = self.settings.run.chooser
        if name is None or self.gateway is None:
            return None
        from failsoft.runs.chooser import Chooser
        from failsoft.runs.loop_model import GatewayModel

        return Chooser(GatewayModel(self.gateway, name), self._models_failing)

    # --- life ------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Starts the app on the running loop. A store that does not answer holds nothing up."""
        if self._crew is not None:
            raise RuntimeError("this app has been started")
        loop = asyncio.get_running_loop()
        crew = self._crew = Crew(loop)
        self.forecasts = Forecasts(self.history, loop)
        self.durable = Durable(
            self.store, crew, self.sources, self._durable_limits, active=lambda: list(self._active.values())
        )
        self._watchdog.start()
        if self.store is not None:
            try:
                kept = await within(
                    crew, self.store.durations(), at=loop.time() + self.limits.store_wait, what="reading the history"
                )
                self.history.load(kept)
            except Exception as error:  # noqa: BLE001 - whatever a store raises, the app starts
                _log.warning("the history could not be read: %s", error)
            self._recorder = Recorder(self.store, crew, self.history, self.sources.wall, on_conflict=self._taken_away)
            _ = crew.start(self._recorder.work(), name="recorder", context=contextvars.Context())
        self._parts = RunParts(
            kernel=self.kernel,
            bus=self.bus,
            sources=self.sources,
            crew=crew,
            history=self.history,
            stale=StaleResults(loop.time),
            limits=self.limits,
            grace=self._grace,
            pace=Pace(self.settings.run.pace.policy()),
            node=self._node,
            store=self.store,
            recorder=self._recorder,
            runners=self._runners,
            sessions=self.sessions,
            reviews=self.durable.reviews,
            doubts=Doubts(self.limits.review_after),
            lane=self.durable.lane,
            may_call=self.durable.may_call if self.durable.durable else None,
            agents=self.agents,
            gateway=self.gateway,
            golden=self.golden,
            models_failing=self.models_failing,
        )
        try:
            await self._start_tool_sources(crew)
            self._page_people(self.durable)
            await self.durable.start(
                self._parts,
                agent=self.agents.get,
                adopt=self._adopt,
                let_go=self._let_go,
                ended=self._remembered.get,
            )
        except BaseException:
            await self.aclose()
            raise
        return self

    def _page_people(self, durable: Durable) -> None:
        """Has whoever is on call told of new approvals, and of alarms, when the settings say where."""
        approvals, alarms = self.settings.approvals, self.settings.alarms
        if approvals.webhook is not None and self.store is not None:
            say = self._told(approvals.webhook, approvals.webhook_secret, "approval")
            durable.reviews.on_asked = lambda record: say(record.to_dict())
        if alarms.webhook is not None:
            self._alarm = self._told(alarms.webhook, alarms.webhook_secret, "budget_burn")

    def _told(self, url: str, secret: SecretStr | None, event: str) -> Callable[[dict[str, Any]], None]:
        if self._transport is None:
            from failsoft.transports.aiohttp_transport import AiohttpTransport

            self._transport = AiohttpTransport()
        webhook, say = pager(url, secret, event, self.settings, self.kernel, self._transport)
        self._pagers.append(webhook)
        return say

    def _burning(self, burning: Burning) -> None:
        """An agent's runs run out of time: finds out why, off the run's path."""
        if self._crew is None or self._closing:
            return
        self.look_after(self._diagnose(burning), f"diagnosis of {burning.agent}")

    async def _diagnose(self, burning: Burning) -> None:
        window = await self.diagnosis_of_last(self.settings.alarms.diagnosis)
        found = {**asdict(burning), "diagnosis": window.to_dict()}
        _log.warning(
            "%d of the last %d runs of %s ran out of time; %s. %s",
            burning.timed_out, burning.ended, burning.agent, window.cause, window.suggestion,
        )  # fmt: skip
        self.bus.emit(Event("budget.burning", asyncio.get_running_loop().time(), data=found))
        if self._alarm is not None:
            self._alarm(found)

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def aclose(self, *, drain: float = 0.0) -> None:
        """Ends the app: runs may finish for `drain` seconds, then are cancelled; what will not stop is left behind.

        Takes at most `drain` and a few seconds, whatever tools and stores do.
        """
        crew = self._crew
        if crew is None or self._closing:
            return
        self._closing = True
        loop = asyncio.get_running_loop()
        try:
            waited_for = [run for run in self._active.values() if not run.background]
            if drain > 0 and waited_for:
                ends = [asyncio.ensure_future(run.ended.wait()) for run in waited_for]
                await asyncio.wait(ends, timeout=drain)
                for end in ends:
                    end.cancel()
        finally:
            self.hand_over()
            for run in list(self._active.values()):
                RunHandle(run).cancel()
            try:
                if self._recorder is not None:
                    try:
                        await within(crew, self._recorder.drain(), at=loop.time() + 2.0, what="the last writes")
                    except FailsoftError as error:
                        _log.warning("the last writes are lost: %s", error.message)
                if self.durable is not None:
                    await self.durable.aclose(self._left)
            finally:
                self._watchdog.stop()
                if self.forecasts is not None:
                    self.forecasts.close()
                await crew.aclose()
                await self.kernel.aclose()
                for pager in self._pagers:
                    await pager.aclose()
                if self._transport is not None:
                    await self._transport.aclose()
                if self._own_store and self.store is not None:
                    await self.store.aclose()

    def hand_over(self) -> None:
        """Lets go of the runs that outlive this process: they are handed back to the store when the app ends."""
        left = self.durable.let_go() if self.durable is not None else []
        for run in left:
            self._let_go(run)
        self._left += left

    # --- runs ------------------------------------------------------------------------------------------------------

    def start(self, request: RunRequest) -> RunHandle:
        """Accepts a request and starts its run; returns at once.

        Raises :class:`BadInput` (``param`` names the field), :class:`UnknownAgent`, :class:`IdempotencyConflict`,
        :class:`QueueFull` when too many runs are running, :class:`BreakerOpen` while the agent keeps failing, or
        :class:`DeadlineExceeded` when nothing is left of the budget. An earlier run of the same key is returned as it
        is. Inside a ``deadline_scope`` the run gets no more than what is left of it.
        """
        parts = self._parts
        if parts is None or self._closing:
            raise RuntimeError("the app is not running: use it in `async with`")
        check_input(request, self.limits)
        agent = self._agent_for(request)
        budget = budget_of(request, agent, self.limits)
        key = None
        if request.idempotency_key is not None:
            key = (request.tenant, request.idempotency_key)
            earlier = self._keys.get(key)
            if earlier is not None:
                run_id, known_hash = earlier
                if known_hash != body_hash(request):
                    raise IdempotencyConflict(
                        "this Idempotency-Key was used with another request", param="Idempotency-Key", run_id=run_id
                    )
                return RunHandle(self._remembered.get(run_id) or self._active[run_id])
        if len(self._active) >= self.limits.max_runs or (request.background and parts.lane and parts.lane.full):
            raise QueueFull("too many runs are running", retry_after=1.0)
        loop = asyncio.get_running_loop()
        admission = self.doors.admit(agent.name, loop.time())
        self._grace.crowd = len(self._active) - (parts.lane.waiting if parts.lane is not None else 0)
        run = Run(self.sources.new_id("run"), request, agent, budget, parts)
        run.admission = admission
        if key is not None:
            self._keys[key] = (run.id, body_hash(request))
        self._drive(run, parts)
        return RunHandle(run)

    def _named(self, request: RunRequest) -> str | None:
        """The agent that the request names; None when it leaves the choice to the platform."""
        return None if request.agent == AUTO and AUTO not in self.agents else request.agent

    async def chosen(self, request: RunRequest) -> RunRequest:
        """The request with the agent that a model chose, when it names none, none is the default, and rules know none.

        For whoever can wait before :meth:`start`; what it took is spent of the budget. Without a model
        (``run.chooser``) the request is given back as it is, and so it is when the model does not help.
        """
        chooser = self.chooser
        if chooser is None or self._named(request) is not None:
            return request
        if request.agent is None and self.agents.default in self.agents:
            return request  # the default is for such questions
        if (earlier := self._keys.get((request.tenant, request.idempotency_key or ""))) is not None:
            run = self._remembered.get(earlier[0]) or self._active[earlier[0]]
            return replace(request, chosen=run.agent.name)
        check_input(request, self.limits)
        if choose(self.agents, request.input) is not None:
            return request
        began = asyncio.get_running_loop().time()
        usual = self.limits.background_budget if request.background else self.limits.default_budget
        budget = usual if request.budget_ms is None else number(request.budget_ms, "budget") / 1000
        left = min(budget - request.spent_ms / 1000, remaining())
        found = await chooser.choose(list(self.agents), request.input, left)
        spent = request.spent_ms + (asyncio.get_running_loop().time() - began) * 1000
        return replace(request, chosen=None if found is None else found.name, spent_ms=spent)

    def _agent_for(self, request: RunRequest) -> Agent:
        """The agent that the request names, or the default one, or the one whose own words fit the question best."""
        name = self._named(request) or request.chosen
        if name is not None:
            return self.agents.get(name)
        try:
            if request.agent is None:
                return self.agents.get()
        except UnknownAgent:
            if (chosen := choose(self.agents, request.input)) is None:
                raise
            return chosen
        return choose(self.agents, request.input) or self.agents.get()

    def _drive(self, run: Run, parts: RunParts) -> None:
        run.on_end = self._on_end
        run.on_rename = self._on_rename
        self._active[run.id] = run
        context = contextvars.copy_context()
        context.run(current.set, ROOT)  # the run's deadline is its own; the caller's was taken into the budget
        if self.traced is not None and current_trace.get() is None:
            context.run(current_trace.set, own_trace(run.id, self.traced))  # what is sent out says what is exported
        if self.forecasts is not None:
            self.forecasts.begun(run)
        run.task = parts.crew.start(run.drive(), name=run.id, run=run.id, context=context)

    def _adopt(self, resumed: Resumed, agent: Agent) -> None:
        """Drives a run that another process, or this one before, drove until now."""
        parts = self._parts
        if parts is None or self._closing:
            raise RuntimeError("the app ends")
        request = request_of(resumed.stored)
        self._drive(
            Run(resumed.stored.record.run, request, agent, resumed.stored.record.budget, parts, resumed=resumed), parts
        )

    def _let_go(self, run: Run) -> None:
        """Another process goes on with the run."""
        self._active.pop(run.id, None)
        if self.forecasts is not None:
            self.forecasts.ended(run)
        if run.request.idempotency_key is not None:
            self._keys.pop((run.request.tenant, run.request.idempotency_key), None)

    def _taken_away(self, run_id: str, epoch: int) -> None:
        """A write met a conflict: whoever holds the run now goes on with it, or has ended it."""
        run = self._active.get(run_id)
        if run is not None and run.epoch == epoch and run.background and run.leave():
            self._let_go(run)

    def _on_rename(self, run: Run, before: str) -> None:
        """The run's key belongs to a run of another process, whose id it takes."""
        self._active.pop(before, None)
        self._active[run.id] = run
        if run.request.idempotency_key is not None:
            self._keys[run.request.tenant, run.request.idempotency_key] = (run.id, body_hash(run.request))

    def _on_end(self, run: Run) -> None:
        self._ended[str(run.cell.value)] += 1
        if self.forecasts is not None:
            self.forecasts.ended(run)
        if run.result is not None:
            now = asyncio.get_running_loop().time()
            result = run.result
            self.doors.settle(
                run.agent.name,
                run.admission,
                run.cell.value,
                result.error,
                result.elapsed,
                now,
                patient=run.budget >= usual_budget(run.agent, self.limits),
            )
            if result.error is not None and result.error.type == "conflict":  # the key was another run's
                self._keys.pop((run.request.tenant, run.request.idempotency_key or ""), None)
        self._active.pop(run.id, None)
        self._remembered[run.id] = run
        self._weights[run.id] = 0 if run.result is None else run.result.weight()
        self._held += self._weights[run.id]
        while len(self._remembered) > _REMEMBERED or (self._held > _REMEMBERED_BYTES and len(self._remembered) > 1):
            old_id, old = self._remembered.popitem(last=False)
            self._held -= self._weights.pop(old_id)
            if old.request.idempotency_key is not None:
                self._keys.pop((old.request.tenant, old.request.idempotency_key), None)

    async def ask(
        self,
        input: str,  # noqa: A002 - the name of the field in every API of ours
        *,
        agent: str | None = None,
        budget: float | None = None,
        mode: Literal["fast", "deep"] | None = None,
        tenant: str | None = None,
        session_id: str | None = None,
        idempotency_key: str | None = None,
        history: tuple[Message, ...] = (),
        metadata: Mapping[str, Any] | None = None,
    ) -> RunResult:
        """Asks and waits for the end; ``budget`` in seconds. Raises as :meth:`start`; a failed run is a result, too.

        When the caller is cancelled, so is the run.
        """
        request = RunRequest(
            input=input,
            agent=agent,
            session_id=session_id,
            budget_ms=None if budget is None else number(budget, "budget") * 1000,
            mode=mode,
            tenant=tenant,
            idempotency_key=idempotency_key,
            history=history,
            metadata=metadata or {},
        )
        handle = self.start(await self.chosen(request))
        try:
            return await handle.result()
        except asyncio.CancelledError:
            handle.cancel()
            raise

    def run(self, run_id: str, *, tenant: str | None = None) -> RunHandle | None:
        """A running or recently ended run; None when there is none here or, with `tenant`, it is another tenant's."""
        found = self._active.get(run_id) or self._remembered.get(run_id)
        if found is None or (tenant is not None and found.request.tenant != tenant):
            return None
        return RunHandle(found)

    async def stored_run(self, run_id: str, *, tenant: str | None = None) -> StoredRun | None:
        """A run as the store has it: one that ended long ago, or in another process. None as for :meth:`run`.

        Raises :class:`~failsoft.base.errors.StoreError` when the store does not answer in time.
        """
        if self.store is None:
            return None
        return await self._read(self.store.load_run(run_id, tenant=tenant), "reading the run")

    async def stored_runs(self, *, tenant: str | None, **wanted: Any) -> Sequence[StoredRun]:
        """What :meth:`~failsoft.stores.protocols.RunStore.list_runs` gives; raises like :meth:`stored_run`."""
        if self.store is None:
            return ()
        return await self._read(self.store.list_runs(tenant=tenant, **wanted), "listing runs")

    async def cancel_stored(self, stored: StoredRun) -> StoredRun:
        """Cancels a run that another process drives, or nobody does; gives the run as it is then.

        The run is taken over and ended in the store, so that its driver, wherever it is, can write nothing more.
        """
        if stored.terminal is not None or self.store is None:
            return stored
        record = stored.record
        error = RunCancelled("the run was cancelled", run_id=record.run)
        result = RunResult(
            run_id=record.run,
            agent=record.agent,
            status=RunState.CANCELLED,
            error=error,
            elapsed=max(0.0, self.sources.wall() - record.created),
            budget=record.budget,
            session_id=record.session,
        ).to_dict()
        with contextlib.suppress(StoreConflict):  # it has ended meanwhile
            epoch = await self._read(self.store.acquire(record.run, self._node), "taking the run over")
            told = {"status": "cancelled", "answer": None, "error": error.to_dict()["error"]}
            event = StoredEvent(epoch, 1, "run.cancelled", self.sources.wall(), None, told)
            writes: list[Write] = [
                AppendEvents(record.run, epoch, (event,)),
                FinishRun(record.run, epoch, str(RunState.CANCELLED), result, self.sources.wall()),
            ]
            await self._read(self.store.write(writes), "cancelling the run")
        return await self.stored_run(record.run, tenant=record.tenant) or stored

    async def _read(self, work: Coroutine[Any, Any, T], what: str) -> T:
        assert self._crew is not None
        try:
            return await within(self._crew, work, at=asyncio.get_running_loop().time() + _READING, what=what)
        except StoreError:
            raise
        except Exception as error:
            raise StoreError(f"{what} failed: {as_error(error).message}", retry_after=1.0) from error

    @property
    def runs(self) -> list[RunHandle]:
        """The runs that are running now."""
        return [RunHandle(run) for run in self._active.values()]

    def diagnosis(self, handle: RunHandle) -> Diagnosis:
        """Why a run was slow or degraded: where its budget went, whom to blame, what to change."""
        return diagnose(facts_of(handle, self._timeline.spans(handle.run_id)))

    async def diagnosis_of_last(self, seconds: float, *, tenant: str | None = None) -> Window:
        """The runs known here that ended in the last `seconds`, as one; a tenant's own when one is given. Lets others
        run in between: there may be many.
        """
        now = asyncio.get_running_loop().time()
        ended = [
            handle
            for handle in self.known_runs()
            if handle.done
            and (tenant is None or handle.tenant == tenant)
            and handle.began + handle.elapsed() >= now - seconds
        ]
        found: list[Diagnosis] = []
        for handle in ended:
            found.append(self.diagnosis(handle))
            if len(found) % 20 == 0:
                await asyncio.sleep(0)
        return summarise(found, seconds)

    def known_runs(self) -> list[RunHandle]:
        """The runs that are running now or have ended not long ago, oldest first within each."""
        return [RunHandle(run) for kept in (self._remembered, self._active) for run in kept.values()]

    @property
    def approvals(self) -> Reviews:
        """What waits for a person, and how it is answered."""
        if self.durable is None:
            raise RuntimeError("the app is not running: use it in `async with`")
        return self.durable.reviews

    def reconfigure(self, settings: Settings) -> None:
        """Changes what may change while it runs: limits of runs to come, models, and each guard in place, keeping its
        state.

        What needs a restart (scope ``process``) stays as it was, whatever `settings` say.
        """
        if self.gateway is not None:
            self.gateway.reconfigure(settings.aliases())  # first, for it may refuse
        before, self.settings = self.settings, settings
        self.limits = limits_of(settings)
        if self._parts is not None:
            self._parts = replace(self._parts, limits=self.limits)
            self._parts.doubts.after = self.limits.review_after
        if self.durable is not None and settings.approvals.expires != before.approvals.expires:
            self.durable.reviews.expires = settings.approvals.expires
        self.agents.default = settings.agent
        for agent in self.agents:
            for spec in agent.tools.specs:
                default = "external" if spec.kind == "external" else "core"
                policy = settings.policy(spec.downstream, default=default)
                if policy != before.policy(spec.downstream, default=default):
                    self.kernel.guard(spec.downstream, policy)

    # --- views -----------------------------------------------------------------------------------------------------

    @property
    def guards(self) -> Mapping[str, Guard]:
        """The guards by downstream."""
        return self.kernel.guards

    def orphans(self) -> list[Orphan]:
        """Tasks that ignored their cancellation and still run; threads are listed by each guard's ``orphans()``."""
        return self._crew.orphans() if self._crew is not None else []

    def statistics(self) -> AppStatistics:
        """Figures as of now."""
        return AppStatistics(
            len(self._active),
            dict(self._ended),
            self._crew.adopted if self._crew is not None else 0,
            self._recorder.statistics() if self._recorder is not None else None,
            self.forecasts.statistics() if self.forecasts is not None else None,
        )

    def __repr__(self) -> str:
        return f"<App agents={list(self.agents.names)} running={len(self._active)}>"
