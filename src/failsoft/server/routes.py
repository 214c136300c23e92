"""Routes that are documented by the framework and run without it.

The framework reads the signatures for the OpenAPI document. At run time its machinery of dependencies would stat source
files on the loop, parse bodies without bounds and cost more than a small run; here the endpoint gets the request
itself.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

__all__ = ["PlainRoute"]


class PlainRoute(APIRoute):
    """Calls ``endpoint(request, **path_parameters)``, which reads the request and makes the response itself."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The endpoint without anything around it."""
        endpoint = self.endpoint

        async def handle(request: Request) -> Response:
            response: Response = await endpoint(request, **request.path_params)
            return response

        return handle
