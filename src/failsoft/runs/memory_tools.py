"""An agent's memory as tools: each under the guard of its downstream, so that a memory that hangs costs what a tool
costs, and an answer without it says so. A tenant sees its own only.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from failsoft.base.errors import MalformedResult
from failsoft.memory.values import ValueStore
from failsoft.memory.vectors import VectorMemory
from failsoft.tools.python import tool
from failsoft.tools.registry import Tool, ToolContext

if TYPE_CHECKING:
    from failsoft.models.gateway import Gateway

__all__ = ["GatewayEmbedder", "memory_tools"]

_decode = msgspec.json.Decoder().decode


class GatewayEmbedder:
    """An alias of the model gateway that makes embeddings; see :class:`~failsoft.memory.vectors.Embedder`."""

    __slots__ = ("_alias", "_gateway")

    def __init__(self, gateway: Gateway, alias: str) -> None:
        gateway.alias(alias)
        self._gateway = gateway
        self._alias = alias

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """One vector for each text."""
        from failsoft.models.embeddings import EmbeddingRequest, embed

        request = EmbeddingRequest({"model": self._alias, "input": list(texts), "encoding_format": "float"})
        record = self._gateway.record(request)  # type: ignore[arg-type]  # it has what a record is made of
        data = _decode(await embed(self._gateway, request, record))["data"]
        try:
            ordered = sorted(data, key=lambda one: one["index"]) if all("index" in one for one in data) else data
            return [one["embedding"] for one in ordered]
        except (TypeError, KeyError):
            raise MalformedResult("the answer has no embeddings") from None

    def __repr__(self) -> str:
        return f"<GatewayEmbedder {self._alias}>"


def memory_tools(
    values: ValueStore | None = None,
    vectors: VectorMemory | None = None,
    *,
    timeout: float = 2.0,
    downstream: str = "memory",
) -> list[Tool]:
    """Tools that note, recall and look for things: for what there is of `values` and `vectors`."""
    made: list[Any] = []
    if values is not None:
        store = values

        @tool(downstream=downstream, kind="external", timeout=timeout)
        async def note(key: str, value: Any, context: ToolContext) -> str:
            """Notes something under a short name, to be recalled later, also in other conversations.

            Args:
                key: The name.
                value: What to note: text, a number, or other plain data.
                context: Of the call.
            """
            await store.put(_space(context), key, value)
            return f"noted under {key}"

        @tool(downstream=downstream, kind="query", timeout=timeout)
        async def recall(key: str, context: ToolContext) -> Any:
            """What was noted under a name, with its age in seconds; null when nothing was."""
            found = await store.get(_space(context), key)
            return None if found is None else {"value": found.value, "age_s": round(found.age, 1)}

        @tool(downstream=downstream, kind="query", timeout=timeout)
        async def noted_names(context: ToolContext, prefix: str = "") -> list[str]:
            """The names under which something is noted, newest first."""
            return await store.keys(_space(context), prefix=prefix)

        made += [note, recall, noted_names]
    if vectors is not None:
        texts = vectors

        @tool(downstream=downstream, kind="external", timeout=timeout)
        async def remember(text: str, context: ToolContext, title: str = "") -> str:
            """Remembers a text, to be found again by its meaning."""
            import hashlib

            name = title[:200] or hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()
            await texts.add(_space(context), {name: text})
            return f"remembered as {name}"

        @tool(downstream=downstream, kind="query", timeout=timeout)
        async def search_memory(question: str, context: ToolContext, limit: int = 5) -> list[dict[str, Any]]:
            """Texts that were remembered and are near a question in meaning, best first."""
            hits = await texts.search(_space(context), question, limit=min(20, max(1, limit)))
            return [{"title": hit.id, "text": hit.text, "score": round(hit.score, 3)} for hit in hits]

        made += [remember, search_memory]
    return made


def _space(context: ToolContext) -> str:
    """A tenant's space; no tenant is one, too, whatever tenants are called."""
    return json.dumps(context.tenant)
