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


StateT = TypeVar("StateT")
AnsweringT = TypeVar("AnsweringT", bound=Answering)


async def answered(
    app: AppContext,
    key: str,
    event: Event,
    state_of: Callable[[], AnsweringT],
    request_id: str | None = None,
) -> tuple[str, AnsweringT]:
    """Publish a request with this key; its id, and the state with its answer.

    `request_id`: of a request that may be repeated. Raises a 409 or 503 problem.
    """

    def answer(asked: str) -> tuple[AnsweringT, str] | None:
        state = state_of()
        return (state, state.requests[asked]) if asked in state.requests else None

    return await decided(app, key, event, answer, app.answer_wait_s, request_id)


async def decided(
    app: AppContext,
    key: str,
    event: Event,
    answer: Callable[[str], tuple[StateT, str] | None],
    wait_s: float,
    request_id: str | None = None,
) -> tuple[str, StateT]:
    """Publish a request with this key; its id, and the state with its answer.

    `answer` gives the state and the reason of a refusal, or "", by the key of the request; None
    before an answer. Raises a 409 or 503 problem.
    """
    request_id = await app.publisher.publish(key, event, request_id)
    asked = request_key(SOURCE, request_id)
    found = await app.tail.until(lambda _: answer(asked), wait_s)
    if found is None:
        raise unavailable("undecided", "the service has not answered yet; look again")
    state, refused = found
    if refused:
        raise conflict("refused", refused)
    return request_id, state
