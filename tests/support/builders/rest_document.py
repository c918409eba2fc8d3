"""The OpenAPI document of the gateway, which costs a second of CPU: made once per process."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from gangline_gateway import openapi
from gangline_gateway.app import routes


@cache
def rest_document() -> dict[str, Any]:
    """What `GET /v1/openapi.json` answers; to be read, not changed."""
    return openapi.document(routes())


@cache
def request_bodies() -> dict[str, dict[str, Any]]:
    """The JSON Schema of the JSON body of each route that takes one, by `METHOD /path`."""
    document = rest_document()
    text = json.dumps(document["components"]["schemas"])
    definitions = json.loads(text.replace("#/components/schemas/", "#/$defs/"))
    found = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            content = operation.get("requestBody", {}).get("content", {})
            if "application/json" in content:
                name = content["application/json"]["schema"]["$ref"].rpartition("/")[2]
                body = {**definitions[name], "$defs": definitions}
                found[f"{method.upper()} {path}"] = body
    return found
