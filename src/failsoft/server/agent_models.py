"""Agents as models: what answers ``POST /v1/chat/completions`` when the model asked for is one of our agents.

It has the gateway's two ways to answer, so that everything around them (keys, budgets, headers, heart-beats, the log)
is the same. An agent is called ``agent/NAME``, and ``NAME`` where no alias is called so. The last user message is the
question, what stands before it the history. How a degraded answer falls short is in the extension field ``failsoft``,
in the headers, and in the text.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from failsoft.app import App
from failsoft.base.errors import BadInput, NotFound
from failsoft.base.jsontext import json_text
from failsoft.base.messages import Message
from failsoft.kernel.deadline import remaining
from failsoft.models.calls import CallRecord
from failsoft.models.chat_request import ChatRequest
from failsoft.models.chunks import Chunk, read_chunk
from failsoft.models.pieces import Piece
from failsoft.models.tokens import raw_count
from failsoft.runs.handle import RunHandle
from failsoft.runs.result import RunRequest, RunResult
from failsoft.runs.state import RunState
from failsoft.server.pieces import pieces
from failsoft.server.requests import SESSION_ID

__all__ = ["AgentModels"]

PREFIX: Final = "agent/"
_WAITING: Final = "This waits for a person's approval. It goes on, whatever they say, as run {run}."
_ROLES: Final = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


@dataclass(frozen=True, slots=True)
class _Pace:
    """When a stream's headers go out although nothing was said, and how often silence is broken, in seconds."""

    commit_after: float = 5.0
    heartbeat: float = 5.0


class AgentModels:
    """The agents of `app`. Where an alias has the name of one, the alias is meant, and the agent has its prefix.

    ``budget`` is what the door gives calls that name none: such a run gets its agent's usual budget instead.
    """

    def __init__(self, app: App, *, budget: float) -> None:
        self._app = app
        self._budget = budget
        self._names = {PREFIX + name: name for name in app.agents.names}
        self._names |= {name: name for name in app.agents.names}

    def serves(self, model: str) -> bool:
        """Whether `model` is one of ours."""
        return model in self._names

    def alias(self, model: str) -> _Pace:
        """The pace of its streams."""
        return _Pace()

    def described(self, model: str) -> Mapping[str, Any]:
        """How ``/v1/models`` shows it; raises :class:`~failsoft.base.errors.NotFound`."""
        name = self._names.get(model)
        if name is None:
            raise NotFound(f"there is no model {model[:100]!r}", param="model")
        agent = self._app.agents.get(name)
        return {
            "id": model,
            "object": "model",
            "created": 0,
            "owned_by": "failsoft",
            "description": agent.description,
        }

    @property
    def listed(self) -> list[str]:
        """The names that ``/v1/models`` lists: each agent once."""
        return [PREFIX + name for name in self._app.agents.names]

    # --- answering -------------------------------------------------------------------------------------------------

    async def complete(self, request: ChatRequest, record: CallRecord) -> dict[str, Any]:
        """The whole answer. Raises what made its run fail."""
        handle = self._start(request, record)
        try:
            await handle.settled()
        finally:
            self._left(handle)
        text, facts = self._told(handle, record)
        if "usage" not in facts:
            facts["usage"] = "estimated"
        return {
            "id": f"chatcmpl-{handle.run_id}",
            "object": "chat.completion",
            "created": int(handle.created),
            "model": request.model,
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": text, "refusal": None},
                    "logprobs": None,
                    "finish_reason": "stop",
                }
            ],
            "usage": record.usage,
            "failsoft": facts,
        }

    async def stream(self, request: ChatRequest, record: CallRecord) -> AsyncGenerator[Piece, None]:
        """The answer in chunks, as it is made when its run says it while it is made. Raises what made its run fail."""
        handle = self._start(request, record)

        def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> Chunk:
            choices = [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]
            return self._chunk(handle, request, {"choices": choices, **more})

        said: list[str] = []
        try:
            async for event in handle.events():
                if event.kind == "text.delta" and isinstance(event.data, Mapping):
                    text = str(event.data.get("text") or "")
                    if not said:
                        yield Piece.of(
                            [chunk({"role": "assistant", "content": ""}, failsoft={"run_id": handle.run_id})]
                        )
                        record.first = asyncio.get_running_loop().time() - record.began
                    if text:
                        said.append(text)
                        yield Piece.of([chunk({"content": piece}) for piece in pieces(text)])
                elif event.kind == f"run.{RunState.WAITING_APPROVAL}":
                    break
            text, facts = self._told(handle, record)
            last: list[Chunk] = []
            if not said:
                last.append(chunk({"role": "assistant", "content": ""}, failsoft={"run_id": handle.run_id}))
            if text.startswith(spoken := "".join(said)):  # else the end says it otherwise than was said before
                last.extend(chunk({"content": piece}) for piece in pieces(text[len(spoken) :]))
            last.append(chunk({}, "stop", failsoft=facts))
            if request.include_usage:
                last.append(self._chunk(handle, request, {"choices": [], "usage": record.usage}))
            yield Piece.of(last)
        finally:
            self._left(handle)

    def _chunk(self, handle: RunHandle, request: ChatRequest, body: dict[str, Any]) -> Chunk:
        whole = {
            "id": f"chatcmpl-{handle.run_id}",
            "object": "chat.completion.chunk",
            "created": int(handle.created),
            "model": request.model,
            **body,
        }
        return read_chunk(json_text(whole).encode())

    def _start(self, request: ChatRequest, record: CallRecord) -> RunHandle:
        if request.n > 1:
            raise BadInput("an agent gives one choice", param="n")
        name = self._names[request.model]
        question, history = _conversation(request.messages)
        options = _options(request.data.get("failsoft"))
        now = asyncio.get_running_loop().time()
        spent = max(0.0, now - record.began)
        whole = remaining() + spent
        usual = abs(whole - self._budget) < 1e-6
        record.route, record.model, record.attempts = PREFIX + name, name, 1
        return self._app.start(
            RunRequest(
                input=question,
                agent=name,
                session_id=options.session_id,
                budget_ms=None if usual else min(whole, self._app.limits.max_budget) * 1000,
                spent_ms=spent * 1000,
                mode=options.mode,
                tenant=record.tenant,
                history=history,
            )
        )

    def _left(self, handle: RunHandle) -> None:
        """Nobody waits for the run any more."""
        if handle.state is not RunState.WAITING_APPROVAL:
            handle.cancel()  # changes nothing when it has ended

    def _told(self, handle: RunHandle, record: CallRecord) -> tuple[str, dict[str, Any]]:
        """The text, and the facts about it; raises the run's error."""
        result = handle.result_now()
        if result is None:
            handle.keep()
            text = _WAITING.format(run=handle.run_id)
            record.degraded = True
            facts: dict[str, Any] = {"run_id": handle.run_id, "status": str(handle.state), "degraded": True}
        else:
            if result.error is not None:
                raise result.error
            text, facts = result.answer or "", _facts(result)
            record.degraded = result.degraded
            handle.told()
        record.finish = "stop"
        asked, answered = round(raw_count(handle.request.input) + 0.5), round(raw_count(text) + 0.5)
        record.usage = {"prompt_tokens": asked, "completion_tokens": answered, "total_tokens": asked + answered}
        return text, facts

    def __repr__(self) -> str:
        return f"<AgentModels {', '.join(self.listed)}>"


def _facts(result: RunResult) -> dict[str, Any]:
    return {
        "run_id": result.run_id,
        "status": str(result.status),
        "degraded": result.degraded,
        "shortfalls": [one.to_dict() for one in result.shortfalls],
        "elapsed_ms": round(result.elapsed * 1000, 3),
        "budget_ms": round(result.budget * 1000, 3),
    }


class _Options(msgspec.Struct, forbid_unknown_fields=True):
    """What the request's own extension field may hold."""

    session_id: str | None = None
    mode: Any = None


def _options(given: Any) -> _Options:
    """Raises :class:`~failsoft.base.errors.BadInput` for what is not understood."""
    if given is None:
        return _Options()
    try:
        found = msgspec.convert(given, _Options)
    except msgspec.ValidationError as error:
        raise BadInput(f"failsoft: {error}", param="failsoft") from None
    if found.session_id is not None and not re.fullmatch(SESSION_ID, found.session_id):
        raise BadInput("failsoft.session_id: should be 1 to 128 letters, digits or ._:@+=~-", param="failsoft")
    return found


def _conversation(messages: Sequence[Mapping[str, Any]]) -> tuple[str, tuple[Message, ...]]:
    """The question, which is the last message and the user's, and what was said before it."""
    last = messages[-1]
    place = f"messages[{len(messages) - 1}]"
    if last.get("role") != "user":
        raise BadInput(f"{place}: an agent answers a question: the last message must be the user's", param=place)
    history: list[Message] = []
    for message in messages[:-1]:
        role: Any = _ROLES.get(str(message.get("role")))
        text = _text(message.get("content"), "messages")
        if role is not None and text:
            history.append(Message(role, text))
    return _text(last.get("content"), f"{place}.content"), tuple(history)


def _text(content: Any, place: str) -> str:
    if isinstance(content, str):
        return content
    parts: list[str] = []
    for part in content or ():
        if part.get("type") != "text":
            raise BadInput(f"{place}: an agent reads text only, not {str(part.get('type'))[:40]!r}", param=place)
        parts.append(part["text"])
    return "\n".join(parts)
