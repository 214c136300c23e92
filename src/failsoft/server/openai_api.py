"""The OpenAI routes in plain ASGI, in front of everything else: chat completions, embeddings, models, metrics.

A request passes: its key and that key's limits, its budget, its body, then the gateway under its deadline. Whatever
happens ends in one response, one count and one line of the log. Agents are models, too: a name that is no alias of the
gateway may be one of theirs (:mod:`~failsoft.server.agent_models`).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from failsoft.base.clock import Sources
from failsoft.base.errors import FailsoftError, Forbidden, NotFound
from failsoft.config.models import GatewaySettings
from failsoft.models.gateway import Gateway
from failsoft.server.auth import Caller, KeyRing
from failsoft.server.call_budget import sound_id
from failsoft.server.call_log import CallLog
from failsoft.server.call_metrics import CallMetrics
from failsoft.server.openai_call import Call, ChatCall, EmbeddingCall
from failsoft.server.plain import ASGIApp, Receive, Scope, Send, send_body, send_error
from failsoft.telemetry.exposition import CONTENT_TYPE

if TYPE_CHECKING:
    from failsoft.server.agent_models import AgentModels
    from failsoft.server.peer_metrics import PeerMetrics

__all__ = ["OpenAIApi"]

_log = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode

_OPEN_PATHS: Final = ("/health/", "/metrics")


class OpenAIApi:
    """An ASGI application: serves the OpenAI routes itself, hands the rest to `inner`, keys checked.

    Use it from one event loop; :meth:`close` ends its log.
    """

    def __init__(
        self,
        gateway: Gateway,
        inner: ASGIApp,
        *,
        settings: GatewaySettings | None = None,
        ring: KeyRing | None = None,
        log: CallLog | None = None,
        sources: Sources | None = None,
        agents: AgentModels | None = None,
    ) -> None:
        self.gateway = gateway
        self.agents = agents
        self.settings = settings if settings is not None else GatewaySettings()
        self.ring = ring if ring is not None else KeyRing({})
        self.log = log if log is not None else CallLog(None)
        self.metrics = CallMetrics()
        self.sources = sources or gateway.sources
        self.more_metrics: Callable[[], bytes] | None = None
        """What is scraped beside the calls' figures."""
        self.peers: PeerMetrics | None = None
        """The processes whose figures are scraped with these."""
        self.calls: set[Call] = set()
        """The calls in flight."""
        self._inner = inner
        self._id_head = f"req_{self.sources.rng.getrandbits(64):016x}"
        self._id_count = 0
        self._paths: dict[str, tuple[str, Callable[[Scope, Receive, Send], Awaitable[None]]]] = {
            "/v1/chat/completions": ("POST", self._chat),
            "/v1/embeddings": ("POST", self._embeddings),
            "/v1/models": ("GET", self._models),
            "/metrics": ("GET", self._scrape),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] == "http":
            found = self._paths.get(scope["path"])
            if found is not None:
                if scope["method"] == found[0]:
                    await found[1](scope, receive, send)  # for calls, their own coroutine: one less on every step
                else:
                    await self._wrong_method(scope, send, found[0])
                return
            if not self.ring.open and not scope["path"].startswith(_OPEN_PATHS):
                headers = dict(scope["headers"])
                try:
                    caller = self.ring.caller(headers)
                except FailsoftError as error:
                    self.metrics.refused(error.code, error.status)
                    if scope["path"].startswith("/v1/models/"):
                        await send_error(send, error, self._identity(headers))
                    else:  # errors of every other path have our own shape
                        await send_body(send, error.status, _encode(error.to_dict()), self._identity(headers))
                    return
                scope.setdefault("state", {}).update(tenant=caller.tenant, caller=caller)
            if scope["path"].startswith("/v1/models/") and scope["method"] == "GET":
                await self._model(scope, receive, send)
                return
        await self._inner(scope, receive, send)

    def new_id(self) -> str:
        """A request id of our own, unique in and across processes."""
        self._id_count += 1
        return f"{self._id_head}{self._id_count:08x}"

    def _identity(self, headers: Mapping[bytes, bytes]) -> bytes:
        """The request's id, the client's own when it is a sound one."""
        return b"x-request-id: %b\r\n" % (sound_id(headers) or self.new_id()).encode()

    def serves(self, model: str) -> bool:
        """Whether `model` is the name of something that answers here."""
        return self.gateway.serves(model) or (self.agents is not None and self.agents.serves(model))

    def answerer(self, model: str) -> Gateway | AgentModels:
        """Who completes chats for `model`."""
        agents = self.agents
        return self.gateway if agents is None or self.gateway.serves(model) or not agents.serves(model) else agents

    # --- routes ------------------------------------------------------------------------------------------------------

    def _chat(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        return ChatCall(self, scope, receive, send).serve()

    def _embeddings(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        return EmbeddingCall(self, scope, receive, send).serve()

    async def _models(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._answer(scope, send, self._listed)

    async def _model(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = scope["path"].removeprefix("/v1/models/")

        def one(caller: Caller) -> bytes:
            if not self.serves(name):
                raise NotFound(f"there is no model {name[:100]!r}", param="model")
            if not caller.may_use(name):
                raise Forbidden(f"this key may not use the model {name[:100]!r}", param="model")
            return _encode(self._described(name))

        await self._answer(scope, send, one)

    async def _answer(self, scope: Scope, send: Send, make: Callable[[Caller], bytes]) -> None:
        headers = dict(scope["headers"])
        identity = self._identity(headers)
        try:
            body = make(self.ring.caller(headers))
        except FailsoftError as error:
            self.metrics.refused(error.code, error.status)
            await send_error(send, error, identity)
        else:
            await send_body(send, 200, body, identity)

    def _listed(self, caller: Caller) -> bytes:
        names = [*self.gateway.aliases, *(self.agents.listed if self.agents is not None else ())]
        names = [name for name in names if caller.may_use(name)]
        return _encode({"object": "list", "data": [self._described(name) for name in names]})

    def _described(self, name: str) -> Mapping[str, Any]:
        if self.agents is not None and not self.gateway.serves(name):
            return self.agents.described(name)
        alias = self.gateway.alias(name)
        found: dict[str, Any] = {"id": name, "object": "model", "created": 0, "owned_by": "failsoft"}
        if alias.description:
            found["description"] = alias.description
        return found

    async def _scrape(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.metrics.in_flight = len(self.calls)
        gateway = self.gateway
        page = self.metrics.page(gateway.kernel, self.ring, log_dropped=self.log.dropped, webhook=gateway.webhook)
        if self.more_metrics is not None:
            page += self.more_metrics()
        if self.peers is not None and scope["query_string"] != b"own=1":
            page = await self.peers.merged(page)
        await send_body(send, 200, page, kind=CONTENT_TYPE)

    async def _wrong_method(self, scope: Scope, send: Send, right: str) -> None:
        body = _encode(
            {
                "error": {
                    "message": f"{scope['path']} takes {right}",
                    "type": "invalid_request_error",
                    "param": None,
                    "code": "method_not_allowed",
                }
            }
        )
        identity = self._identity(dict(scope["headers"]))
        await send_body(send, 405, body, b"allow: %b\r\n" % right.encode() + identity)

    # --- the end -----------------------------------------------------------------------------------------------------

    def cut(self) -> None:
        """Ends the calls in flight, each with an error that says why: the time to finish is over."""
        for call in list(self.calls):
            call.cut()

    def close(self) -> None:
        """Writes what is left of the log."""
        self.log.close()

    def __repr__(self) -> str:
        return f"<OpenAIApi {self.gateway!r} in_flight={len(self.calls)}>"
