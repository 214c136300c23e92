"""Embeddings: asked for at the same routes, under the same guards and limits, with failures read the same way.

An answer is passed on as it came, once it is known to have one vector for each input.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from failsoft.base.errors import BadInput, EmptyResult, MalformedResult
from failsoft.models.calls import CallRecord
from failsoft.models.chat_request import ChatRequest
from failsoft.models.failures import Symptom, read_failure
from failsoft.models.limits import RequestLimits
from failsoft.models.passing import through
from failsoft.models.states import RouteState
from failsoft.models.whole import WholeCall

if TYPE_CHECKING:
    from failsoft.models.gateway import Gateway

__all__ = ["EmbeddingRequest", "decode_embedding_request", "embed"]

_MOST_INPUTS: Final = 2048
_MAX_ANSWER: Final = 64 * 1024 * 1024
"""Bytes of an answer: 2048 vectors of 3072 numbers as JSON are some 60 MB."""

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class EmbeddingRequest:
    """A request that passed the checks; ``data`` is its whole body. It has what routes and limits need of a chat's."""

    __slots__ = ("data", "size")

    def __init__(self, data: dict[str, Any], size: int = 0) -> None:
        self.data = data
        self.size = size

    @property
    def model(self) -> str:
        """The alias asked for."""
        return self.data["model"]  # type: ignore[no-any-return] # checked when it was decoded

    @property
    def number(self) -> int:
        """How many vectors are wanted."""
        given = self.data["input"]
        return 1 if type(given) is str or type(given[0]) is int else len(given)

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The inputs, for estimates of their size."""
        given = self.data["input"]
        if type(given) is str:
            return [{"role": "user", "content": given}]
        if type(given[0]) is str:
            return [{"role": "user", "content": one} for one in given]
        number = len(given) if type(given[0]) is int else sum(map(len, given))
        return [{"role": "user", "content": "a " * number}]  # tokens already: about one each

    @property
    def tools(self) -> list[dict[str, Any]]:
        """None."""
        return []

    @property
    def max_tokens(self) -> int:
        """An answer has no tokens."""
        return 0

    @property
    def stream(self) -> bool:
        """Embeddings come whole."""
        return False

    def encode_for(self, upstream_model: str) -> bytes:
        """The body to send to an upstream."""
        return _encode({**self.data, "model": upstream_model})

    def __repr__(self) -> str:
        return f"<EmbeddingRequest model={self.model!r} number={self.number}>"


def decode_embedding_request(body: bytes, *, limit: int) -> EmbeddingRequest:
    """Reads and checks a body of at most `limit` bytes; raises :class:`~failsoft.base.errors.BadInput` only."""
    if len(body) > limit:
        raise BadInput(f"the request body has {len(body)} bytes; {limit} are allowed", details={"limit": limit})
    try:
        data = _decode(body)
    except RecursionError:
        raise BadInput("the request is nested too deep") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise BadInput(f"the request body is not valid JSON: {error}") from None
    if type(data) is not dict:
        raise BadInput("the request body must be a JSON object")
    model = data.get("model")
    if type(model) is not str or not 0 < len(model) <= 256:
        raise BadInput("model must be a string of 1 to 256 characters", param="model")
    _check_input(data.get("input"))
    dimensions = data.get("dimensions")
    if dimensions is not None and (type(dimensions) is not int or dimensions < 1):
        raise BadInput("dimensions must be an integer of at least 1", param="dimensions")
    encoding = data.get("encoding_format")
    if encoding is not None and encoding not in {"float", "base64"}:
        raise BadInput("encoding_format must be float or base64", param="encoding_format")
    return EmbeddingRequest(data, len(body))


def _check_input(given: Any) -> None:
    if type(given) is str and given:
        return
    if type(given) is not list or not given:
        raise BadInput("input must be a text, a list of texts, or tokens", param="input")
    if type(given[0]) is int:
        if not all(type(one) is int for one in given):
            raise BadInput("input must be a text, a list of texts, or tokens", param="input")
        return
    if len(given) > _MOST_INPUTS:
        raise BadInput(f"input must have at most {_MOST_INPUTS} items", param="input")
    kind = type(given[0])
    for index, one in enumerate(given):
        sound = type(one) is kind and bool(one)
        if not sound or (kind is not str and (kind is not list or not all(type(token) is int for token in one))):
            raise BadInput(
                f"input[{index}] must be a text, or a list of tokens, and not empty", param=f"input[{index}]"
            )


async def embed(gateway: Gateway, asked: EmbeddingRequest, record: CallRecord) -> bytes:
    """The response's body, under the current deadline; raises the last route's error when none serves."""
    state = gateway.state(asked.model)

    async def at(
        gateway: Gateway, chosen: RouteState, request: ChatRequest, limits: RequestLimits, record: CallRecord
    ) -> bytes:
        route = chosen.route
        if chosen.guard is None:
            raise BadInput(f"{request.model} has a route without a model; it makes no embeddings", param="model")

        def read(body: bytes, downstream: str) -> bytes:
            record.usage = _checked(body, asked.number, downstream)
            return body

        assert route.base_url is not None
        url = f"{route.base_url.rstrip('/')}/embeddings"
        body = asked.encode_for(route.model or asked.model)
        return await WholeCall(gateway, chosen, limits, record, body, read, url=url, most=_MAX_ANSWER).under_guard()

    # it has what is asked of a chat request on the way
    body: bytes = await through(gateway, state, cast("ChatRequest", asked), record, at)
    record.ended = asyncio.get_running_loop().time()
    return body


def _checked(body: bytes, number: int, downstream: str) -> dict[str, Any] | None:
    """The usage in a sound answer; raises the mapped error when it is none."""
    try:
        data = _decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        data = None
    if type(data) is not dict or data.get("error") or not isinstance(data.get("data"), list):
        raise read_failure(Symptom(status=200, body=body if data is None else data, downstream=downstream)).error
    vectors: list[Any] = data["data"]
    if not vectors:
        raise EmptyResult("the answer has no embeddings", downstream=downstream, details={"fault": "no_content"})
    sound = all(isinstance(one, Mapping) and one.get("embedding") for one in vectors)
    if len(vectors) != number or not sound:
        raise MalformedResult(
            f"{number} embeddings were asked for; the answer has others", downstream=downstream,
            details={"fault": "no_content"},
        )  # fmt: skip
    usage = data.get("usage")
    return usage if isinstance(usage, dict) else None
