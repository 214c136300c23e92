"""The proxy's control over HTTP: list, add, renew and remove faults while it runs; and the client that holds one.

GET    /toxics                       {"toxics": [{"id", "toxic", "lease_s", "age_s", "seen", "struck"}]}
POST   /toxics  {"toxic", "lease"}   201; the fault ends after `lease` unless it is renewed (default 60 s)
POST   /toxics/{id}/renew {"lease"}  another so many seconds from now
DELETE /toxics/{id}                  204
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import aiohttp
from aiohttp import web

from failsoft.base.errors import BadInput, DownstreamUnavailable, FailsoftError, Forbidden
from failsoft.config.durations import parse_duration
from failsoft.drills.faults import parse_toxic
from failsoft.drills.proxy import DrillProxy

__all__ = ["DEFAULT_LEASE", "control", "held"]

DEFAULT_LEASE: Final = 60.0
_BODY: Final = 16_384

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@web.middleware
async def _told(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        if "Origin" in request.headers:  # a page in somebody's browser, which breaks what it cannot even see
            raise Forbidden("the control is not for web pages")
        return await handler(request)
    except FailsoftError as error:
        return web.json_response(error.to_dict(), status=error.status)


async def _body(request: web.Request) -> dict[str, Any]:
    try:
        body: object = json.loads(await request.read() or b"{}")
    except (ValueError, RecursionError):
        raise BadInput("the body should be a JSON object", param="body") from None
    if not isinstance(body, dict):
        raise BadInput("the body should be a JSON object", param="body")
    unknown = body.keys() - {"toxic", "lease"}
    if unknown:
        raise BadInput(f"unknown field {min(unknown)!r}; known are toxic and lease", param=str(min(unknown)))
    return body


def _lease(body: dict[str, Any]) -> float:
    try:
        return parse_duration(body.get("lease", DEFAULT_LEASE))
    except ValueError as error:
        raise BadInput(f"lease {error}", param="lease") from None


def _application(proxy: DrillProxy) -> web.Application:
    faults = proxy.faults

    def now() -> float:
        return asyncio.get_running_loop().time()

    async def listed(request: web.Request) -> web.StreamResponse:
        return web.json_response({"toxics": [lease.to_dict(now()) for lease in faults]})

    async def added(request: web.Request) -> web.StreamResponse:
        body = await _body(request)
        text = body.get("toxic")
        if not isinstance(text, str):
            raise BadInput("toxic should be text like latency:share=0.05,delay=20s", param="toxic")
        lease = faults.add(parse_toxic(text), seconds=_lease(body))
        return web.json_response(lease.to_dict(now()), status=201)

    async def renewed(request: web.Request) -> web.StreamResponse:
        lease = faults.renew(request.match_info["id"], _lease(await _body(request)))
        return web.json_response(lease.to_dict(now()))

    async def removed(request: web.Request) -> web.StreamResponse:
        faults.remove(request.match_info["id"])
        return web.Response(status=204)

    application = web.Application(client_max_size=_BODY, middlewares=[_told])
    application.router.add_get("/toxics", listed)
    application.router.add_post("/toxics", added)
    application.router.add_post("/toxics/{id}/renew", renewed)
    application.router.add_delete("/toxics/{id}", removed)
    return application


@asynccontextmanager
async def control(proxy: DrillProxy, *, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """Serves the control of `proxy`; gives its address as a URL."""
    runner = web.AppRunner(_application(proxy), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        try:
            await site.start()
        except OSError as error:
            raise BadInput(f"--control: {host}:{port}: {error.strerror or error}", param="control") from None
        found = runner.addresses[0]
        yield f"http://{found[0]}:{found[1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def held(url: str, toxics: list[str], *, lease: float = 10.0) -> AsyncIterator[list[str]]:
    """Holds faults at the proxy whose control is at `url`: adds them, renews their leases, and takes them away.

    Should this process end in any other way, they end by themselves after `lease` seconds at most.
    """
    timeout = aiohttp.ClientTimeout(total=max(1.0, lease / 3))
    async with aiohttp.ClientSession(base_url=url.rstrip("/") + "/", timeout=timeout) as session:
        ids: list[str] = []
        try:
            for text in toxics:
                added = await _asked(session, "POST", "toxics", toxic=text, lease=lease)
                ids.append(added["id"])
            renewing = asyncio.ensure_future(_renew(session, ids, lease))
            try:
                yield ids
            finally:
                renewing.cancel()
                await asyncio.wait([renewing])
        finally:
            for one in ids:
                with suppress(FailsoftError):
                    await _asked(session, "DELETE", f"toxics/{one}")


async def _renew(session: aiohttp.ClientSession, ids: list[str], lease: float) -> None:
    while True:
        await asyncio.sleep(lease / 3)
        for one in ids:
            with suppress(FailsoftError):
                await _asked(session, "POST", f"toxics/{one}/renew", lease=lease)


async def _asked(session: aiohttp.ClientSession, method: str, path: str, **body: Any) -> dict[str, Any]:
    try:
        async with session.request(method, path, json=body or None) as response:
            found: dict[str, Any] = await response.json() if response.status != 204 else {}
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise DownstreamUnavailable(f"the proxy's control does not answer: {type(error).__name__}") from None
    if response.status >= 400:
        raise FailsoftError.from_dict(found.get("error", {}))
    return found
