"""Asking a running server: one request, its JSON, and errors in one line."""

from __future__ import annotations

import http.client
import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any, Final

from failsoft.base.errors import BadInput, DownstreamUnavailable, FailsoftError

__all__ = ["URL", "asked"]

URL: Final = "http://127.0.0.1:8080"
"""Where a server listens unless told otherwise."""
_TIMEOUT: Final = 10.0
_MOST: Final = 64 * 1024 * 1024
"""Bytes of an answer that are read."""


class _Stay(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: a key goes to the server that it is for and to no other."""

    def redirect_request(self, *args: Any) -> None:
        """Nothing is asked anew; the redirect is an answer like any other that is no success."""


_opener = urllib.request.build_opener(_Stay)


def asked(path: str, *, field: str, url: str | None = None, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What the server at `url` (default ``FAILSOFT_URL``, then :data:`URL`) answers to a GET of `path`, or to a POST of
    `body` to it: an object that has a `field`, or it is no server of ours.

    The key in ``FAILSOFT_API_KEY`` goes with it. Raises the server's own error, or ``DownstreamUnavailable``.
    """
    base = (url or os.environ.get("FAILSOFT_URL") or URL).rstrip("/")
    if not base.startswith(("http://", "https://")):
        raise BadInput(f"--url: {base[:80]} should begin with http:// or https://", param="url")
    headers = {"accept": "application/json", "content-type": "application/json"}
    if key := os.environ.get("FAILSOFT_API_KEY"):
        headers["authorization"] = f"Bearer {key}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(base + path, data=data, headers=headers)  # noqa: S310 - the scheme is checked above
    try:
        with _opener.open(request, timeout=_TIMEOUT) as response:
            raw = response.read(_MOST)
    except urllib.error.HTTPError as error:
        with error:
            try:
                told = json.loads(error.read())["error"]
            except (ValueError, KeyError, TypeError):
                raise DownstreamUnavailable(f"{base} answered {error.code}") from None
        raise FailsoftError.from_dict(told) from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise DownstreamUnavailable(f"no server answers at {base}: {reason}; start one with failsoft serve") from None
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or field not in found:
        raise DownstreamUnavailable(f"what answers at {base} is no failsoft server")
    return found
