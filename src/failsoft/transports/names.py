"""Name look-ups that cannot hang the rest: in daemon threads of their own, a bounded number at a time.

The standard look-up runs in the loop's one pool of threads and cannot be cancelled: some names whose servers do not
answer hold all of its threads, with every other look-up of the process behind them, and its exit.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, Final

from aiohttp.abc import AbstractResolver, ResolveResult

from failsoft.base.addresses import AddressRule
from failsoft.base.errors import AddressRefused
from failsoft.base.futures import heard
from failsoft.kernel.threads import ThreadLane

__all__ = ["LookUp", "Names", "look_up"]

LookUp = Callable[[str, int, socket.AddressFamily], list[ResolveResult]]
"""``look_up(host, port, family)`` gives addresses or raises ``OSError``; it may block, it runs in a thread."""

UNDER_WAY: Final = 16
"""Look-ups at a time per connection pool; one that nobody waits for any more counts until its thread has ended."""

_NUMERIC: Final = socket.NI_NUMERICHOST | socket.NI_NUMERICSERV


class Names(AbstractResolver):
    """Resolves names for one pool, leaving out the addresses that its rule refuses.

    Raises ``OSError`` when a name cannot be resolved or too many look-ups hang, :class:`AddressRefused` when nothing is
    left of what it means.
    """

    def __init__(self, rule: AddressRule | None, by: LookUp | None = None, *, under_way: int = UNDER_WAY) -> None:
        self._rule = rule
        self._look_up = by or look_up
        self._lane = ThreadLane("names")
        self._most = under_way
        self._count = 0

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """The addresses of `host`; the very ones that are connected to."""
        if self._count >= self._most:
            raise OSError(f"{self._count} name look-ups are under way and do not come back")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()

        def ended(value: Any, error: BaseException | None) -> None:
            self._count -= 1
            if answer.done():
                return
            if error is None:
                answer.set_result(value)
            else:
                answer.set_exception(error if isinstance(error, OSError) else OSError(f"no name: {error}"))

        self._count += 1
        self._lane.start(loop, self._look_up, (host, port, family), ended)
        try:
            found: list[ResolveResult] = await answer
        finally:
            heard(answer)
        if self._rule is None:
            return found
        refusals = [self._rule.refusal(one["host"]) for one in found]
        allowed = [one for one, refusal in zip(found, refusals, strict=True) if refusal is None]
        if not allowed:
            raise AddressRefused(f"{host[:200]!r} means {refusals[0]}" if found else f"{host[:200]!r} means nothing")
        return allowed

    async def close(self) -> None:
        """Lets idle threads end."""
        self._lane.close()

    def __repr__(self) -> str:
        return f"<Names under_way={self._count} of={self._most}>"


def look_up(host: str, port: int, family: socket.AddressFamily) -> list[ResolveResult]:
    """What the system says."""
    found: list[ResolveResult] = []
    for kind, _, protocol, _, address in socket.getaddrinfo(
        host, port, family=family, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG
    ):
        if kind == socket.AF_INET6 and len(address) > 3 and address[3]:  # the scope of a link-local address
            literal = socket.getnameinfo(address, _NUMERIC)[0]
        else:
            literal = str(address[0])
        found.append(
            ResolveResult(
                hostname=host, host=literal, port=port, family=kind, proto=protocol, flags=socket.AI_NUMERICHOST
            )
        )
    return found
