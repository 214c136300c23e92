"""The floor: a bare ASGI proxy with the gateway's own HTTP client and no feature at all.

FLOOR_UPSTREAM=http://127.0.0.1:PORT/v1 uvicorn floor:app --http httptools --loop uvloop --no-access-log
"""

import os

import aiohttp

BASE = os.environ.get("FLOOR_UPSTREAM", "http://127.0.0.1:18091/v1")
_sessions: list[aiohttp.ClientSession] = []


def session() -> aiohttp.ClientSession:
    if not _sessions:
        _sessions.append(
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=100),
                timeout=aiohttp.ClientTimeout(total=None),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        )
    return _sessions[0]


async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            kind = message["type"]
            if kind == "lifespan.shutdown":
                for one in _sessions:
                    await one.close()
            await send({"type": f"{kind}.complete"})
            if kind == "lifespan.shutdown":
                return
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    if scope["path"].endswith("/models"):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": b"{}"})
        return
    async with session().post(
        BASE + "/chat/completions",
        data=body,
        headers={"Content-Type": "application/json", "Authorization": "Bearer sk-fake"},
    ) as response:
        kind = response.headers.get("content-type", "").encode()
        await send({"type": "http.response.start", "status": response.status, "headers": [(b"content-type", kind)]})
        async for chunk in response.content.iter_any():
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
