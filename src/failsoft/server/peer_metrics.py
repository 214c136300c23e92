"""The figures of several processes on one page: whoever is scraped asks the others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from failsoft.base.errors import DownstreamUnavailable, FailsoftError
from failsoft.base.transport import HttpRequest, Transport
from failsoft.kernel.breaker_policy import BreakerPolicy
from failsoft.kernel.bulkhead_policy import BulkheadPolicy
from failsoft.kernel.guard import Guard, Kernel
from failsoft.kernel.policy import Policy
from failsoft.kernel.retry import RetryPolicy
from failsoft.telemetry.exposition import Page, merged

__all__ = ["PeerMetrics"]

_LARGEST: Final = 8 << 20
"""Bytes of a peer's page."""
_POLICY: Final = Policy(
    attempt_timeout=1.0,
    call_timeout=1.0,
    bulkhead=BulkheadPolicy(permits=4, queue=0),
    breaker=BreakerPolicy(consecutive_failures=5, open_for=10.0, open_max=30.0),
    retry=RetryPolicy(queries=0),
)


class PeerMetrics:
    """Merges the pages of `peers` (base URLs) into one's own; a peer that does not answer within a second is counted
    as missing and is not waited for.
    """

    def __init__(self, peers: Iterable[str], kernel: Kernel, transport: Transport) -> None:
        self._transport = transport
        self._peers: list[tuple[str, Guard]] = [
            (f"{peer.rstrip('/')}/metrics?own=1", kernel.guard(f"peer:{urlsplit(peer).netloc}", _POLICY))
            for peer in peers
        ]

    async def merged(self, own: bytes) -> bytes:
        """One page for all."""
        found = await asyncio.gather(*(self._page(url, guard) for url, guard in self._peers))
        pages = [page for page in found if page is not None]
        counts = Page()
        counts.family(
            "failsoft_metrics_processes",
            "gauge",
            "Processes whose figures are on this page, and those that should be and did not answer.",
            [({"state": "merged"}, 1 + len(pages)), ({"state": "missing"}, len(found) - len(pages))],
        )
        return merged([own.decode(), *pages]) + counts.text()

    async def _page(self, url: str, guard: Guard) -> str | None:
        try:
            return await guard.call(self._fetch, url, guard.name)
        except FailsoftError:
            return None

    async def _fetch(self, url: str, name: str) -> str:
        async with self._transport.send(HttpRequest("GET", url, downstream=name, connect=1.0)) as response:
            if response.status != 200:
                raise DownstreamUnavailable(f"{name} answered {response.status}", downstream=name)
            return (await response.read(_LARGEST)).decode(errors="replace")

    def __repr__(self) -> str:
        return f"<PeerMetrics peers={len(self._peers)}>"
