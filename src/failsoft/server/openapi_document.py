"""The OpenAPI document: what the framework writes of our own routes, and the routes that are served without it."""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI

from failsoft.server.schemas import error_schemas

__all__ = ["complete"]

_BEARER: Final = {"type": "http", "scheme": "bearer", "description": "An API key, where the server has keys."}
_CODES: Final = {
    400: "Something about the request is wrong; `param` says what.",
    401: "An API key is needed, or this one is not known.",
    403: "This key may not use that model.",
    404: "There is no such model.",
    408: "The body did not come in time.",
    409: "It conflicts with what is there.",
    413: "The body is too large.",
    422: "No plan could be made for the question.",
    429: "Too many requests; `Retry-After` says when to come back.",
    499: "The run was cancelled.",
    500: "A defect of ours, or a model that fails for good.",
    502: "What is behind the model failed.",
    503: "Refused for now, or nobody behind the model answers.",
    504: "The time ran out.",
}
_ERROR: Final = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string", "examples": ["invalid_request_error"]},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"], "examples": ["bad_input"]},
                "run_id": {"type": ["string", "null"]},
                "retry_after": {"type": ["number", "null"]},
            },
        }
    },
}
_MODEL: Final = {
    "type": "object",
    "required": ["id", "object", "created", "owned_by"],
    "properties": {
        "id": {"type": "string"},
        "object": {"const": "model"},
        "created": {"type": "integer"},
        "owned_by": {"type": "string"},
        "description": {"type": "string"},
    },
}
_CHAT: Final = {
    "type": "object",
    "required": ["model", "messages"],
    "properties": {
        "model": {"type": "string", "description": "An alias, `agent/NAME`, or an agent's name."},
        "messages": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["role", "content"],
                "properties": {
                    "role": {"enum": ["system", "developer", "user", "assistant"]},
                    "content": {"type": "string"},
                },
            },
        },
        "stream": {"type": "boolean"},
        "n": {"type": "integer", "minimum": 1, "maximum": 128},
        "max_tokens": {"type": "integer", "minimum": 1, "maximum": 100_000_000},
        "temperature": {"type": "number", "minimum": 0, "maximum": 2},
    },
    "examples": [{"model": "agent/analyst", "messages": [{"role": "user", "content": "revenue per region"}]}],
}
_EMBEDDINGS: Final = {
    "type": "object",
    "required": ["model", "input"],
    "properties": {
        "model": {"type": "string"},
        "input": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]},
    },
    "examples": [{"model": "embedder", "input": ["one", "two"]}],
}


def complete(api: FastAPI) -> dict[str, Any]:
    """The document for everything that an app serves."""
    document = FastAPI.openapi(api)
    paths: dict[str, Any] = document["paths"]
    for path, methods in paths.items():
        for operation in methods.values():
            # Ours check for themselves: what the framework would answer never comes.
            refused = operation["responses"].get("422", {}).get("content", {}).get("application/json", {})
            if "HTTPValidationError" in str(refused.get("schema")):
                del operation["responses"]["422"]
            if not path.startswith("/health"):
                operation["security"] = [{"key": []}, {}]
                operation["responses"].setdefault("401", _error_response(401, ours=True))
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas.update({name: schema for name, schema in error_schemas().items() if name not in schemas})
    schemas["OpenAIError"] = _ERROR
    schemas["Model"] = _MODEL
    document["components"]["securitySchemes"] = {"key": _BEARER}
    paths.update(_openai_paths())
    return document


def _error_response(code: int, *, ours: bool = False) -> dict[str, Any]:
    name = "ErrorView" if ours else "OpenAIError"
    schema = {"$ref": f"#/components/schemas/{name}"}
    return {"description": _CODES[code], "content": {"application/json": {"schema": schema}}}


def _operation(summary: str, response: dict[str, Any], *codes: int, body: Any = None, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "tags": ["models"],
        "summary": summary,
        "security": [{"key": []}, {}],
        "responses": {
            "200": {"description": "As asked.", "content": response},
            **{str(code): _error_response(code) for code in codes},
        },
        **more,
    }
    if body is not None:
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return found


def _openai_paths() -> dict[str, Any]:
    calls = (400, 401, 403, 404, 408, 409, 413, 422, 429, 499, 500, 502, 503, 504)
    whole = {"type": "object", "required": ["id", "object", "created", "model", "choices"]}
    stream = {"schema": {"type": "object", "properties": {"data": {"type": "string"}}}}
    model = {"$ref": "#/components/schemas/Model"}
    listed = {"type": "object", "required": ["object", "data"], "properties": {"data": {"items": model}}}
    name = {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
    return {
        "/v1/chat/completions": {
            "post": _operation(
                "Complete a chat: models and agents",
                {"application/json": {"schema": whole}, "text/event-stream": stream},
                *calls,
                body=_CHAT,
            )
        },
        "/v1/embeddings": {
            "post": _operation(
                "Embed texts",
                {"application/json": {"schema": {"type": "object", "required": ["data"]}}},
                *calls,
                body=_EMBEDDINGS,
            )
        },
        "/v1/models": {"get": _operation("The models there are", {"application/json": {"schema": listed}}, 401)},
        "/v1/models/{model}": {
            "get": _operation("A model", {"application/json": {"schema": model}}, 401, 403, 404, parameters=[name])
        },
        "/metrics": {
            "get": {
                "tags": ["operating"],
                "summary": "Figures for Prometheus",
                "responses": {
                    "200": {"description": "The page.", "content": {"text/plain": {"schema": {"type": "string"}}}}
                },
            }
        },
    }
