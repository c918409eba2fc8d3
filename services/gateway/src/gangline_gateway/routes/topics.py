"""/v1/events: the newest events of any topic, for admins."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from enum import StrEnum
from typing import Annotated, Any, Literal

from fastapi import Query
from starlette.responses import StreamingResponse

from gangline_bus.ports import Record
from gangline_gateway.app_context import Admin, App, AppContext, answers, router
from gangline_gateway.events import answer_of
from gangline_gateway.routes.logs import STREAM, Follow, LastEventId
from gangline_gateway.routes.streams import live_part, resumed
from gangline_schemas.api.logs import BusEvent, EventPage
from gangline_schemas.catalog import Topic

topics = router("Logs and events")


class TopicName(StrEnum):
    """Topics by their short names."""

    REQUESTS = "requests"
    ADMIN = "admin"
    QUOTA = "quota"
    SCHEDULING = "scheduling"
    FAULTS = "faults"
    CHECKPOINTS = "checkpoints"
    WORKERS = "workers"
    HEARTBEATS = "heartbeats"
    STEPS = "steps"
    LOGS = "logs"
    PROGRESS = "progress"
    PARTS = "parts"

    @property
    def topic(self) -> Topic:
        """The catalog's topic."""
        return Topic(f"gangline.{self.value}")


@topics.get(
    "/v1/events",
    operation_id="getEvents",
    summary="List events of topics",
    response_model=EventPage,
    responses={200: STREAM, **answers()},
)
async def get_events(
    app: App,
    caller: Admin,
    topic: Annotated[
        list[TopicName] | None, Query(max_length=12, description="Default: all except heartbeats.")
    ] = None,
    start: Annotated[Literal["start", "end"], Query(alias="from")] = "end",
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    follow: Follow = False,  # noqa: FBT002
    last_event_id: LastEventId = None,
) -> EventPage | StreamingResponse:
    """Needs an admin. The newest events; with `follow` a stream from the start or the end."""
    every = [name for name in TopicName if name is not TopicName.HEARTBEATS]
    wanted = [name.topic for name in dict.fromkeys(topic or every)]
    places = [place for one in wanted for place in app.tail.places(one)]
    if not follow:
        return EventPage(events=_newest(app, wanted, limit), cursor=None)
    at = resumed(app, last_event_id, places)
    if at is None:
        at = dict.fromkeys(places, 0) if start == "start" else app.tail.ends(places)

    def render(record: Record) -> Iterable[tuple[str, Any]]:
        answer = answer_of(record, app.tail.names)
        if answer is not None:
            yield answer.type, answer.model_dump(mode="json")

    async def parts() -> AsyncGenerator[str, None]:
        async with aclosing(live_part(app, at, lambda _: True, render, None)) as live:
            async for part in live:
                yield part

    return app.streams.response(parts(), caller.name)


def _newest(app: AppContext, wanted: list[Topic], limit: int) -> list[BusEvent]:
    found: list[BusEvent] = []
    for topic in wanted:
        for place in app.tail.places(topic):
            position = app.tail.newest(place, limit)
            records, _ = app.tail.read({place: position}, limit)
            rendered = (answer_of(record, app.tail.names) for record in records)
            found += [answer for answer in rendered if answer is not None]
    found.sort(key=lambda event: (event.time, event.topic, event.partition, event.offset))
    return found[-limit:]
