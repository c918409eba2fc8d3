"""The OpenAPI document of the gateway, which costs a second of CPU: made once per process."""

from __future__ import annotations

from functools import cache
from typing import Any

from gangline_gateway import openapi
from gangline_gateway.app import routes


@cache
def rest_document() -> dict[str, Any]:
    """What `GET /v1/openapi.json` answers; to be read, not changed."""
    return openapi.document(routes())
