"""MLflow's Flask part reads a file only as fast as the client takes it.

Its bridge to ASGI would hold the whole answer of `/get-artifact` in memory.
"""

from __future__ import annotations

from typing import Any

import anyio
from mlflow.server.fastapi_app import _EfficientWSGIResponder
from starlette.types import Scope

_PIECES = 8
"""Of an answer, between the thread that reads and the one that sends."""


class BoundedResponder(_EfficientWSGIResponder):  # type: ignore[misc]  # MLflow has no types
    """Answers one request."""

    def __init__(self, app: Any, scope: Scope) -> None:
        super().__init__(app, scope)
        self.stream_send, self.stream_receive = anyio.create_memory_object_stream[Any](_PIECES)
