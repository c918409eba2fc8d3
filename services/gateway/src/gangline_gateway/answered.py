"""Requests to a service whose state remembers its answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

from gangline_gateway.app_context import AppContext
from gangline_gateway.problems import conflict, unavailable
from gangline_gateway.publish import SOURCE
from gangline_schemas.base import Event
from gangline_schemas.envelope import request_key


class Answering(Protocol):
    """A state with its answers: the reason why each request was refused, or ""."""

    @property
    def requests(self) -> Mapping[str, str]:
        """By the key of the request."""


StateT = TypeVar("StateT", bound=Answering)


async def answered(
    app: AppContext,
    key: str,
    event: Event,
    state_of: Callable[[], StateT],
) -> tuple[str, StateT]:
    """Publish a request with this key; its id, and the state with its answer.

    Raises a 409 or 503 problem.
    """
    request_id = await app.publisher.publish(key, event)
    asked = request_key(SOURCE, request_id)

    def found(_: object) -> StateT | None:
        state = state_of()
        return state if asked in state.requests else None

    state = await app.tail.until(found, app.answer_wait_s)
    if state is None:
        raise unavailable("undecided", "the service has not answered yet; look again")
    if state.requests[asked]:
        raise conflict("refused", state.requests[asked])
    return request_id, state
