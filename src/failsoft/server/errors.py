"""Every error of the HTTP API in one shape: ``{"error": {"type", "code", "message", "param", …}}``."""

from __future__ import annotations

import math
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from failsoft.base.errors import FailsoftError, InternalError
from failsoft.base.jsontext import json_text
from failsoft.server.refusals import BodyTooLarge, RequestTimeout, error_body

__all__ = ["BodyTooLarge", "Json", "RequestTimeout", "error_body", "error_response", "install_errors"]

_CODES = {
    404: ("not_found", "not_found", "no such path"),
    405: ("invalid_request", "method_not_allowed", "this path does not take that method"),
}


class Json(JSONResponse):
    """A JSON response that can be made of whatever tools have put into a result."""

    def render(self, content: Any) -> bytes:
        """The body."""
        return json_text(content).encode()


def error_response(error: FailsoftError) -> Json:
    """The response for an error of ours, with ``Retry-After`` where a time is known."""
    headers: dict[str, str] = {}
    if error.retry_after is not None and math.isfinite(error.retry_after):
        headers["retry-after"] = str(max(0, math.ceil(error.retry_after)))
    if isinstance(error, BodyTooLarge | RequestTimeout):
        headers["connection"] = "close"  # the rest of the body is not read
    return Json(error.to_dict(), status_code=error.status, headers=headers)


def install_errors(api: FastAPI) -> None:
    """Registers the handlers for our errors, for the framework's, and for defects."""

    @api.exception_handler(FailsoftError)
    async def ours(request: Request, error: FailsoftError) -> JSONResponse:
        return error_response(error)

    @api.exception_handler(HTTPException)
    async def frameworks(request: Request, error: HTTPException) -> JSONResponse:
        kind, code, message = _CODES.get(error.status_code, ("invalid_request", "bad_input", str(error.detail)))
        return JSONResponse(error_body(kind, code, message), status_code=error.status_code, headers=error.headers)

    @api.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        param = str(first["loc"][-1])
        return JSONResponse(error_body("invalid_request", "bad_input", str(first["msg"]), param=param), status_code=400)

    @api.exception_handler(Exception)
    async def defect(request: Request, error: Exception) -> JSONResponse:
        # The framework raises it on, and the HTTP server logs it with its trace.
        return error_response(InternalError("something went wrong on our side; it has been logged"))
