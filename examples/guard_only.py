"""The resilience kernel alone, around an aiohttp call; run it with a URL."""

import asyncio
import sys
from typing import Any

import aiohttp

from failsoft import FailsoftError, Policy, deadline_scope, guard
from failsoft.kernel.classify import Verdict, classify

# 2 s a try, 5 s a call with its queueing and retries; breaker, bulkhead and retry budget come with it
api = guard("api", Policy(call_timeout=5.0, attempt_timeout=2.0))


def read(result: Any, error: BaseException | None) -> Verdict:
    """What aiohttp calls a lost connection is one to the guard, too: it counts, and may be tried again."""
    return classify(result, ConnectionError() if isinstance(error, aiohttp.ClientConnectionError) else error)


async def main(url: str) -> str:
    """The page, or why there is none, within 8 seconds whatever happens."""
    async with aiohttp.ClientSession(raise_for_status=True) as session:
        try:
            async with deadline_scope(8.0), await api.call(session.get, url, classify=read) as response:
                return await response.text()
        except (FailsoftError, aiohttp.ClientError) as error:
            return f"no answer, and why: {error!r}"


if __name__ == "__main__":
    print(asyncio.run(main(sys.argv[1])))  # noqa: T201 - it is a program
