"""The agent loop: the model thinks, chooses tools, sees what they bring, until it answers or its budget says so.

What is decided is in :mod:`~failsoft.runs.turns`, which knows no I/O; here it is done. A loop never fails for a tool: a
failure, a refusal, a limit is something that the model is told. Whatever happens to the loop itself, what its tools
have brought is there for the answer.

Over 600 lines because a turn's steps share one conversation and are read together; models and calls are apart already.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from failsoft.base.errors import BadInput, FailsoftError, TaskTimeout, ToolFailed, Unaffordable
from failsoft.base.outcomes import Outcome, Provenance, RungTried
from failsoft.kernel.breaker import BreakerState
from failsoft.kernel.classify import as_error
from failsoft.kernel.ladder import Rung, climb
from failsoft.memory.history import window
from failsoft.models.tokens import TokenEstimate
from failsoft.runs.conversation import Conversation, error_text
from failsoft.runs.crew import within
from failsoft.runs.judge import Judge
from failsoft.runs.limits import RunParts
from failsoft.runs.loop import Loop
from failsoft.runs.loop_calls import Prepared, delegate_tool, prepare, result_text, shown
from failsoft.runs.loop_model import Calling, LoopModel, Reply, TurnRequest
from failsoft.runs.plan import TaskSpec
from failsoft.runs.planner import PlanRequest
from failsoft.runs.runners import Direct, Ladder, LastRung, TaskFrame, TaskRunner
from failsoft.runs.speech import Speech
from failsoft.runs.turns import Decision, Tree, Turns

if TYPE_CHECKING:
    from failsoft.runs.agents import Agent

__all__ = ["AgentRunner"]

_RULES: Final = """Use the tools for facts; never invent numbers or results. Call several tools at once when they do not
need each other. A tool's result may be an error: then use another way, or say what is missing and why. When you know
enough, answer in the language of the question."""
_ENDINGS: Final[dict[str, str]] = {
    "time_short": "There is no time for more tools.",
    "turn_limit": "There is no room for more steps.",
    "call_limit": "No more calls may be made.",
    "loop_detected": "You repeat the same calls; they were not made again.",
    "unknown_tool": "You keep naming tools that do not exist.",
    "malformed_arguments": "Your arguments keep being wrong.",
    "empty_replies": "Your replies are empty.",
}
_ANSWER: Final = "(Platform: {why} Give your final answer now, from what you have, and say what is missing.)"
_WITHDRAWN: Final = "(Platform: failing, so unavailable now: {names}. Use other ways, or say what is missing.)"
_AGAIN: Final = "(Platform: your reply was empty. Call a tool or give your answer.)"
_TEMPERATURES: Final[dict[str | None, float]] = {None: 0.2, "fast": 0.3, "deep": 0.7}
_FAST_ANSWER: Final = 150
"""Tokens of an answer in fast mode."""


class _Found(NamedTuple):
    """What a call has brought."""

    tool: str
    outcome: Outcome[Any]


class AgentRunner:
    """Serves the agent tasks of one run. ``emit`` tells of what is said and called.

    ``tools(agent)`` gives what serves that agent's tools. ``speaks`` is the task whose words are the run's answer.
    ``done`` are the actions that loops of this run had made before a restart, by the names of their calls; ``keep`` is
    told of each that is made, so that a loop that is gone through again is told of it and does not make it again.
    """

    def __init__(
        self,
        parts: RunParts,
        *,
        agents: Callable[[str], Agent],
        tools: Callable[[Agent], TaskRunner],
        model: Callable[[str | LoopModel, Calling], LoopModel],
        request: PlanRequest,
        emit: Callable[[str, str | None, Any], None],
        speaks: str | None = None,
        width: int = 16,
        done: Mapping[str, Outcome[Any]] | None = None,
        keep: Callable[[str, Outcome[Any]], None] | None = None,
    ) -> None:
        self.parts = parts
        self.tools = tools
        self.request = request
        self.emit = emit
        self.speaks = speaks
        self.done = done or {}
        self.keep = keep
        self.tree: Tree | None = None
        self.tokens = TokenEstimate()
        self.places = asyncio.Semaphore(width)
        """Calls of the run's agents that are under way at once."""
        self.model = model
        self._agents = agents
        self._loops: dict[str, _LoopRun] = {}

    def agent(self, name: str) -> tuple[Agent, Loop]:
        """An agent with a loop; raises :class:`BadInput` when it has none, or there is none."""
        agent = self._agents(name)
        if agent.loop is None:
            raise BadInput(f"agent {name!r} has no loop, so it cannot be a task", param="tool")
        return agent, agent.loop

    def requested(self, task: TaskSpec) -> str:
        """See :class:`~failsoft.runs.runners.TaskRunner`."""
        return f"agent {task.tool}"

    def ladder(self, task: TaskSpec, arguments: Mapping[str, Any], frame: TaskFrame) -> Ladder | Direct:
        """See :class:`~failsoft.runs.runners.TaskRunner`."""
        question = arguments.get("input")
        if not isinstance(question, str) or not question.strip():
            raise BadInput("an agent task needs its input as text", param="arguments.input")
        paused = self._loops.get(frame.task)
        if paused is not None and paused.waits_for:
            paused.resume(frame)
            return Direct(self.requested(task), paused.go)
        agent, loop = self.agent(task.tool)
        if self.tree is None:
            self.tree = Tree(loop.limits.calls)
        run = self._loops[frame.task] = _LoopRun(self, agent, loop, question, frame, self.tree, depth=0)
        return Direct(self.requested(task), run.go)

    def last_resort(self, task: TaskSpec, arguments: Mapping[str, Any] | None, frame: TaskFrame) -> Iterator[LastRung]:
        """See :class:`~failsoft.runs.runners.TaskRunner`: what the loop had when it was stopped."""
        run = self._loops.get(frame.task)
        if run is not None:
            yield LastRung("what was found", "rule", lambda: run.remains("deadline_exceeded"))

    def __repr__(self) -> str:
        return f"<AgentRunner loops={len(self._loops)} {self.tree!r}>"


class _LoopRun:
    """One loop under way."""

    def __init__(
        self,
        runner: AgentRunner,
        agent: Agent,
        loop: Loop,
        question: str,
        frame: TaskFrame,
        tree: Tree,
        *,
        depth: int,
    ) -> None:
        self._runner = runner
        self._agent = agent
        self._loop = loop
        self._frame = frame
        self._tree = tree
        self._depth = depth
        self._clock = asyncio.get_running_loop().time
        self._model = runner.model(loop.model, loop.calling)
        request = runner.request
        system = "\n".join(text for text in (loop.instructions or agent.description, _RULES) if text)
        self._talk = Conversation(system, request.history if depth == 0 else (), question)
        speaks = depth == 0 and frame.task == runner.speaks
        self._speech = Speech(self._clock, self._tell if speaks else None)
        usual = runner.parts.history.median(self._key)
        self._turns = Turns(loop.limits, tree, began=self._clock(), deadline=frame.deadline, usual=usual)
        self._wire = {tool.spec.name: tool.spec.to_openai() for tool in agent.tools}
        self._delegates = self._with_delegates()
        self._served = runner.tools(agent)
        self._found: list[_Found] = []
        self._failed: dict[str, RungTried] = {}
        self._lesser: str | None = None
        self._made: Counter[str] = Counter()
        self._numbers: dict[str, int] = {}
        self._children: dict[str, _LoopRun] = {}
        self._ids: set[str] = set()
        self._costs: list[float] = []
        self._cost = 0.0
        self._specs: dict[str, TaskSpec] = {}
        self.waits_for: list[Prepared] = []
        """Calls that wait for a person."""

    def _with_delegates(self) -> tuple[str, ...]:
        if self._depth >= self._loop.limits.depth:
            return ()
        for name in self._loop.delegates:
            agent, _ = self._runner.agent(name)
            self._wire[name] = delegate_tool(name, agent.description)
        return self._loop.delegates

    @property
    def _key(self) -> str:
        return f"turn:{self._model.name}"

    def _tell(self, kind: str, text: str) -> None:
        self._runner.emit(kind, self._frame.task, {"text": text})

    def resume(self, frame: TaskFrame) -> None:
        """Goes on under another deadline."""
        now = self._clock()
        self._frame = frame
        turns = Turns(self._loop.limits, self._tree, began=now, deadline=frame.deadline, usual=self._turns.usual)
        turns.made = self._turns.made
        self._turns = turns

    # --- the loop --------------------------------------------------------------------------------------------------

    async def go(self) -> Any:
        """The answer: its text, or an outcome that says in what it falls short. Raises when there is nothing at all."""
        try:
            return await self._go()
        finally:
            if not self.waits_for:
                self._talk.close()

    async def _go(self) -> Any:
        if self.waits_for:
            await self._batch(self.waits_for)
        while True:
            decision = self._turns.next(self._clock())
            if decision.step == "stop":
                return self._partial(decision.reason or "deadline_exceeded", None)
            answering = decision.step == "answer"
            try:
                reply = await self._think(decision)
            except FailsoftError as error:
                return self._partial(error.code, error)
            if answering:
                self._speech.end(reply.text, final=True)
                if not reply.text.strip():
                    return self._partial(decision.reason or "empty_replies", reply.error)
                return await self._finished(decision.reason or (reply.error and reply.error.code) or _cut(reply))
            if reply.error is not None and reply.text.strip() and not reply.calls:
                self._speech.end(reply.text, final=True)
                return await self._finished(reply.error.code)
            cut = reply.error is not None or reply.finish == "length"
            prepared = [self._read(call, cut=cut) for call in reply.calls]
            verdict = self._turns.replied(reply.text, [one.chosen for one in prepared])
            self._speech.end(reply.text, final=verdict == "final")
            if verdict == "final":
                return await self._finished(_cut(reply))
            if verdict == "again":
                self._talk.note(_AGAIN)
                continue
            self._talk.said(reply.text, [one.call for one in prepared])
            if verdict == "refuse":
                self._refuse(prepared)
            else:
                await self._batch(prepared)

    async def _think(self, decision: Decision) -> Reply:
        """One turn of the model."""
        answering = decision.step == "answer"
        offered, note = self._offer()
        if answering:
            note = _ANSWER.format(why=_ENDINGS.get(decision.reason or "", ""))
        mode = self._runner.request.mode
        temperature = self._loop.temperature
        most = self._loop.max_tokens
        if answering and mode == "fast":
            most = min(most or _FAST_ANSWER, _FAST_ANSWER)
        self._speech.begin(answering=answering)
        began = self._clock()
        reply = await self._model.reply(
            TurnRequest(
                self._messages(note),
                offered,
                answering,
                self._speech.said,
                self._speech.thought,
                self._speech.called,
                most,
                _TEMPERATURES.get(mode, 0.2) if temperature is None else temperature,
            )
        )
        seconds = self._clock() - began
        self._turns.took(seconds)
        self._runner.parts.history.add_to(self._key, "turn", seconds)
        if reply.degraded:
            self._lesser = reply.served or "another model"
        return reply

    def _messages(self, note: str) -> Sequence[dict[str, Any]]:
        """What the model is given: as much of the conversation as fits, and the platform's note behind it."""
        talk = self._talk.messages
        costs = self._costs
        for one in talk[len(costs) :]:
            cost = self._runner.tokens.raw_messages([one])
            costs.append(cost)
            self._cost += cost
        limit = self._loop.limits.window
        messages: Sequence[dict[str, Any]] = talk
        if self._cost > limit:
            known = {id(message): cost for message, cost in zip(talk, costs, strict=True)}
            messages = window(talk, limit, lambda one: known[id(one)], keep=(self._talk.question,))
        if not note:
            return messages
        last = messages[-1]
        if last["role"] == "user":
            return [*messages[:-1], {"role": "user", "content": f"{last['content']}\n\n{note}"}]
        return [*messages, {"role": "user", "content": note}]

    def _offer(self) -> tuple[list[dict[str, Any]], str]:
        """The tools that can be used now, and a note that names those that cannot."""
        withdrawn = [name for name in self._wire if name not in self._delegates and self._is_out(name)]
        if not withdrawn:
            return list(self._wire.values()), ""
        offered = [wire for name, wire in self._wire.items() if name not in withdrawn]
        return offered, _WITHDRAWN.format(names=", ".join(withdrawn))

    def _is_out(self, name: str) -> bool:
        """Whether neither a tool nor any of its alternates can be called now."""
        guards = self._runner.parts.kernel.guards
        spec = self._agent.tools.get(name).spec
        ways = [spec.downstream, *(self._agent.tools.get(a.tool).spec.downstream for a in spec.alternates)]
        return all(way in guards and guards[way].breaker.state is BreakerState.OPEN for way in ways)

    # --- calls -----------------------------------------------------------------------------------------------------

    def _read(self, call: Any, *, cut: bool) -> Prepared:
        """A call, under an id of its own."""
        if call.id in self._ids:
            call = type(call)(f"{call.id}_{len(self._ids)}", call.name, call.arguments)
        self._ids.add(call.id)
        return prepare(call, self._agent.tools, self._delegates, cut=cut)

    def _refuse(self, prepared: Sequence[Prepared]) -> None:
        """The calls of a turn that ends the loop: none is made."""
        reason = self._turns.ending or "turn_limit"
        for one in prepared:
            self._talk.result(one.call.id, one.error or error_text(reason, _ENDINGS.get(reason, reason)))

    async def _batch(self, prepared: Sequence[Prepared]) -> None:
        """Makes the calls of one turn at once, as many as there may be, and tells the model of each, in order."""
        told: dict[int, str] = {}
        groups: dict[str, list[int]] = {}
        for index, one in enumerate(prepared):
            refusal = one.error or self._unaffordable(one)
            if refusal is not None:
                told[index] = refusal
                continue
            shared = one.call.name not in self._delegates and self._kind(one) == "query"
            groups.setdefault(one.chosen.key if shared else f"{index}:{one.chosen.key}", []).append(index)
        if self.waits_for:  # they were counted when they were first asked for
            granted, self.waits_for = len(groups), []
        else:
            granted = self._tree.take(len(groups))
        places = list(groups.values())
        for beyond in places[granted:]:
            text = f"{self._tree.limit} calls were made, and no more may be; answer with what you have"
            told.update(dict.fromkeys(beyond, error_text("call_limit", text)))
        chosen = [prepared[place[0]] for place in places[:granted]]
        if len(chosen) == 1:
            results = [await self._make(chosen[0])]
        else:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._make(one)) for one in chosen]
            results = [task.result() for task in tasks]
        waiting: FailsoftError | None = None
        for place, result in zip(places, results, strict=False):
            if isinstance(result, FailsoftError):
                waiting = waiting or result
                self.waits_for.append(prepared[place[0]])
            else:
                told.update(dict.fromkeys(place, result))
        for index, one in enumerate(prepared):
            if index in told:
                self._talk.result(one.call.id, told[index])
        if waiting is not None:
            raise waiting

    def _kind(self, one: Prepared) -> str:
        return self._agent.tools.get(one.call.name).spec.kind

    def _unaffordable(self, one: Prepared) -> str | None:
        """Why a call is not worth its beginning: it usually needs more than there is, less what the answer needs."""
        left = self._turns.deadline - self._turns.reserve - self._clock()
        if one.call.name in self._delegates:
            return None
        spec = self._agent.tools.get(one.call.name).spec
        guard = self._runner.parts.kernel.guards.get(spec.downstream)
        usual = (guard.latency.typical if guard is not None else 0.0) or spec.usual or 0.0
        if usual <= left or spec.alternates:
            return None
        text = f"{spec.name} usually needs {usual:.3g} s, {max(left, 0.0):.3g} s are left for it"
        self._failed[spec.name] = RungTried(spec.name, "unaffordable", text)
        return error_text("unaffordable", text)

    async def _make(self, one: Prepared) -> str | FailsoftError:
        """One call, from its place among those under way to what the model is told of it.

        Gives the error itself when a person has to be asked; raises nothing but a cancellation.
        """
        name = one.call.name
        began = self._clock()
        self._runner.emit("tool.started", self._frame.task, {"call": one.call.id, "tool": name})
        async with self._runner.places if self._depth == 0 else _AtOnce():
            outcome: Outcome[Any] | FailsoftError
            try:
                outcome = await (self._delegate(one) if name in self._delegates else self._call(one))
            except Exception as error:  # noqa: BLE001 - whatever a tool raises is something that the model is told
                outcome = as_error(error)
        waits = isinstance(outcome, FailsoftError) and outcome.type == "waiting"
        said = {"call": one.call.id, "tool": name, "elapsed_ms": round((self._clock() - began) * 1000, 3)}
        if isinstance(outcome, FailsoftError):
            said |= {"status": "waiting" if waits else "failed", "reason": outcome.code}
        else:
            said |= {"status": "degraded" if outcome.degraded else "completed", "rung": outcome.provenance.rung}
        self._runner.emit("tool.finished", self._frame.task, said)
        if isinstance(outcome, FailsoftError):
            if waits:
                return outcome
            if not isinstance(outcome, BadInput):  # what the model got wrong by itself is no part that is missing
                self._failed[name] = RungTried(name, outcome.code, outcome.message, self._clock() - began)
            return error_text(outcome.code, outcome.message)
        self._failed.pop(name, None)
        self._found.append(_Found(name, outcome))
        return result_text(outcome, self._loop.limits.result)

    async def _call(self, one: Prepared) -> Outcome[Any]:
        """A tool by its ladder, its last resort included."""
        name, frame, parts = one.call.name, self._frame, self._runner.parts
        spec = self._agent.tools.get(name).spec
        number = self._number(one, one.chosen.key)
        if spec.kind == "query" and spec.approval is False:
            task = f"{frame.task}.{name}"
        else:  # the same when the loop is gone through again: the key is made of it, and approvals are found by it
            digest = hashlib.blake2b(one.chosen.key.encode(), digest_size=6).hexdigest()
            task = f"{frame.task}.{digest}.{number}"
            if (before := self._runner.done.get(task)) is not None:
                return before
        until = self._turns.deadline - self._turns.reserve
        if not spec.alternates:
            guard = parts.kernel.guard(spec.downstream)
            limit = spec.timeout if spec.timeout is not None else guard.policy.call_timeout
            if limit is not None:
                until = min(until, self._clock() + limit + parts.limits.patience)
        inner = TaskFrame(frame.run, frame.tenant, task, until, frame.report)
        asked = self._specs.get(name)
        if asked is None:  # runners know the call by its frame and arguments; this says only what it is
            asked = self._specs[name] = TaskSpec.model_construct(id=frame.task, tool=name, title=name)
        tried: tuple[RungTried, ...] = ()
        try:
            ladder = self._served.ladder(asked, one.arguments, inner)
            outcome = await within(
                parts.crew,
                _climbed(ladder),
                at=until,
                what=f"tool {name}",
                patience=parts.limits.patience,
                run=frame.run,
                task=task,
                tenant=frame.tenant,
            )
            if outcome.provenance.served is not None:
                if spec.kind == "action" and self._runner.keep is not None:
                    self._runner.keep(task, outcome)
                return outcome
            tried = outcome.provenance.tried
            failure: FailsoftError = FailsoftError.from_dict(
                {"code": outcome.provenance.reason, "message": tried[0].message if tried else ""}
            )
        except Exception as error:  # whatever a tool raises, its last resort is asked
            failure = as_error(error)
            if failure.type == "waiting":
                raise
        for rung in self._served.last_resort(asked, one.arguments, inner):
            last = rung.serve()
            if last is not None:
                age, marks = last.provenance.age, last.provenance
                return Outcome(
                    last.value,
                    Provenance(
                        marks.requested, marks.served, marks.rung, failure.code, age, equivalent=marks.equivalent
                    ),
                )
        raise failure

    def _number(self, one: Prepared, key: str) -> int:
        """Which of the calls that are alike this one is; the same when it is made again after a person was asked."""
        if one.call.id not in self._numbers:
            self._numbers[one.call.id] = self._made[key]
            self._made[key] += 1
        return self._numbers[one.call.id]

    async def _delegate(self, one: Prepared) -> Outcome[Any]:
        """A part of the work, by another agent, in what is left less what this one's answer needs."""
        agent, loop = self._runner.agent(one.call.name)
        frame, parts = self._frame, self._runner.parts
        until = self._turns.deadline - self._turns.reserve
        if agent.budget is not None:
            until = min(until, self._clock() + agent.budget)
        number = self._number(one, agent.name)
        inner = frame._replace(task=f"{frame.task}.{agent.name}{number}", deadline=until)
        child = self._children.pop(one.call.id, None)
        if child is None:
            child = _LoopRun(
                self._runner, agent, loop, one.arguments["input"], inner, self._tree, depth=self._depth + 1
            )
        else:
            child.resume(inner)
        try:
            value = await within(
                parts.crew,
                child.go(),
                at=until,
                what=f"agent {agent.name}",
                patience=parts.limits.patience,
                run=frame.run,
                task=inner.task,
                tenant=frame.tenant,
            )
        except FailsoftError as error:
            if error.type == "waiting":
                self._children[one.call.id] = child
                raise
            remains = child.remains(error.code)
            if remains is None:
                raise
            return remains
        return value if isinstance(value, Outcome) else Outcome(value, Provenance(agent.name, agent.name))

    # --- the end ---------------------------------------------------------------------------------------------------

    async def _judged(self, text: str, *, complete: bool) -> str | None:
        """Why an answer is not good enough, when somebody judges it and says so."""
        if self._loop.judge is None or self._depth:
            return None
        parts = self._runner.parts
        judge = Judge(self._runner.model(self._loop.judge, "native"), parts.models_failing)
        facts = [shown(one.outcome.value, 2_000) for one in self._found]
        found = await judge.judge(
            self._talk.messages[self._talk.question]["content"], text, complete=complete, facts=facts
        )
        said = {"good": found.good, "tier": found.tier, "why": found.why, "failed": found.failed}
        self._runner.emit("answer.judged", self._frame.task, said)
        return None if found.good or found.tier == "status" else "judged_poor"

    async def _finished(self, reason: str | None) -> Any:
        """What the model said, marked with everything in which it may fall short."""
        text = self._speech.text
        reason = reason or await self._judged(text, complete=not self._failed)
        stale = [one.outcome.provenance for one in self._found if one.outcome.provenance.age is not None]
        lesser = [one.outcome.provenance for one in self._found if one.outcome.degraded]
        failed = tuple(self._failed.values())
        if reason is None and not lesser and not failed and self._lesser is None:
            return text
        why = reason or (failed[0].code if failed else lesser[0].reason if lesser else "model_fallback")
        return Outcome(
            text,
            Provenance(
                requested=self._model.name,
                served=self._lesser or self._model.name,
                rung="primary" if self._lesser is None else "alternate",
                reason=why,
                age=max((mark.age for mark in stale if mark.age is not None), default=None),
                equivalent=not lesser and self._lesser is None,
                truncated=reason is not None or bool(failed) or any(mark.truncated for mark in lesser),
                tried=failed,
            ),
        )

    def _partial(self, reason: str, error: FailsoftError | None) -> Outcome[Any]:
        """The answer without the model; raises when there is nothing to say."""
        remains = self.remains(reason)
        if remains is not None:
            return remains
        if error is not None:
            raise error
        if reason == "unaffordable":
            raise Unaffordable("too little time was left for the model to answer")
        if reason == "deadline_exceeded":
            raise TaskTimeout("the agent's time was used up before it had an answer")
        raise ToolFailed(f"the agent ended without an answer ({reason})", details={"reason": reason})

    def remains(self, reason: str) -> Outcome[Any] | None:
        """What there is without another word of the model: what it said, and what its tools brought."""
        said = self._speech.text  # as it was told, for what is told is the answer's beginning
        zh = self._runner.request.language == "zh"
        lines = [f"- {one.tool}: {shown(one.outcome.value)}" for one in self._found]
        if not said.strip() and not lines:
            return None
        if lines:
            heading = "已查到的内容：" if zh else "What was found:"
            between = "\n\n" if said and not said.endswith("\n\n") else ""
            said = f"{said}{between}{heading}\n" + "\n".join(lines)
        ages = [one.outcome.provenance.age for one in self._found if one.outcome.provenance.age is not None]
        return Outcome(
            said,
            Provenance(
                requested=self._model.name,
                served="what was found",
                rung="rule",
                reason=self._turns.ending or reason,
                age=max(ages, default=None),
                equivalent=False,
                truncated=True,
                tried=tuple(self._failed.values()),
            ),
        )

    def __repr__(self) -> str:
        return f"<LoopRun {self._agent.name} depth={self._depth} {self._turns!r}>"


class _AtOnce:
    """A place that is always free: a delegate's calls have one already, and must not wait for themselves."""

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(self, *exc: object) -> None:
        return None


def _cut(reply: Reply) -> str | None:
    """Why a reply that is an answer is not all of one."""
    if reply.stale:
        return "model_stale"
    return "answer_cut" if reply.finish == "length" else None


async def _climbed(ladder: Ladder | Direct) -> Outcome[Any]:
    """A ladder's outcome; raises the error of the only rung."""
    if isinstance(ladder, Ladder):
        return await climb(ladder.rungs, requested=ladder.requested)
    value = await ladder.serve(*ladder.args)
    if isinstance(value, Outcome):

        async def known() -> Any:
            return value

        return await climb((Rung(ladder.requested, known),), requested=ladder.requested)
    return Outcome(value, Provenance(ladder.requested, ladder.requested))
