"""The OpenAPI 3.1 description of `/v1`, generated from the calls and the forms of their values."""

from __future__ import annotations

import inspect
import json
from functools import cache
from typing import Any

from strandline import __version__
from strandline.metastore.interface import Session
from strandline.metastore.session.calls import (
    CALLS,
    PROTOCOL,
    PROTOCOL_HEADER,
    STORE_HEADER,
    USER_HEADER,
    Call,
)
from strandline.metastore.session.json_values import Components, Form, Json
from strandline.metastore.session.wire_json import PROBLEM_TYPE

_PROBLEM = {
    "type": "object",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string", "description": "stays the same; docs/reference/errors.md"},
    },
    "required": ["type", "title", "status", "detail", "code"],
}

_HEADERS: dict[str, Json] = {
    USER_HEADER: {"type": "string", "minLength": 1, "description": "percent-encoded UTF-8"},
    PROTOCOL_HEADER: {"const": PROTOCOL},
    STORE_HEADER: {"type": "string", "description": "as in an earlier answer, or left out"},
}
_ANSWER_HEADERS: dict[str, Json] = {
    PROTOCOL_HEADER: {"schema": {"const": PROTOCOL}},
    STORE_HEADER: {"schema": {"type": "string"}, "description": "the environment id of the store"},
}


@cache
def openapi_text() -> bytes:
    components: Components = {"Problem": _PROBLEM}
    description = {
        "openapi": "3.1.0",
        "info": {
            "title": "Strandline",
            "version": __version__,
            "summary": "A versioned, transactional metastore for Spark",
            "description": f"Calls change between releases; this is protocol {PROTOCOL}.",
        },
        "paths": {call.path: {"post": _operation(call, components)} for call in CALLS.values()},
        "components": {
            "schemas": components,
            "securitySchemes": {"user": {"type": "http", "scheme": "basic"}},
        },
        "security": [{"user": []}, {}],
    }
    return json.dumps(description, separators=(",", ":")).encode()


def _operation(call: Call, components: Components) -> dict[str, Any]:
    documentation = inspect.getdoc(getattr(Session, call.name)) or ""
    problem = {PROBLEM_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {
        "operationId": call.name,
        "summary": documentation.partition("\n")[0],
        "parameters": [
            {"name": name, "in": "header", "schema": schema} for name, schema in _HEADERS.items()
        ],
        "requestBody": {
            "required": True,
            "content": {call.request_type: _media(call.request_form, components)},
        },
        "responses": {
            "200": {
                "description": "the result",
                "headers": _ANSWER_HEADERS,
                "content": {call.answer_type: _media(call.answer_form, components)},
            },
            "default": {
                "description": "an error",
                "headers": _ANSWER_HEADERS,
                "content": problem,
            },
        },
    }


def _media(form: Form | None, components: Components) -> Json:
    return {} if form is None else {"schema": form.schema(components)}
