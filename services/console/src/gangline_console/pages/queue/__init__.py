"""Queue: pending jobs in the scheduler's order with each term of it, and when they start."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from starlette.responses import Response

from gangline_console.client import ApiError, GatewayAwayError
from gangline_console.page import Page, View
from gangline_console.pages.queue.timeline import Timeline, timeline
from gangline_schemas.api.cluster import Queue, QueueEntry
from gangline_schemas.api.questions import ExpectedStart, QueueOutlook, ShardOutlook

LIMIT = 200
OUTLOOK_WAIT_S = 1.5
"""The page is shown without expected starts then; its script reads it again."""
ORDERS = {
    "fair": "priority + the team's share above its guarantee - waiting; the lowest comes first",
    "drf": "the team that has the least of what it is due, then priority, then waiting",
    "short": "the job that is done first if it takes a multiple of its need",
    "fifo": "first in, first out; the first job holds up all behind it",
    "sjf": "the shortest stated run time first; the first job holds up all behind it",
}
FIRST = {
    "restart": "It restarts after a failure, so it comes first",
    "guarantee": "It is within its team's guarantee, so it comes first",
}


@dataclass(frozen=True)
class Shard:
    """One shard's part of the page; without an outlook its jobs alone."""

    number: int
    rows: tuple[tuple[QueueEntry, ExpectedStart | None], ...]
    outlook: ShardOutlook | None
    timeline: Timeline | None

    @property
    def has_terms(self) -> bool:
        """Whether its order has a formula with terms."""
        return any(entry.order is not None for entry, _ in self.rows)

    @property
    def order(self) -> str:
        """The name of its order, as far as it is known."""
        if self.outlook is not None:
            return self.outlook.order
        return "fair" if self.has_terms else ""


async def _show(view: View) -> Response:
    team, cursor = view.query("team"), view.query("cursor")
    asked = {"team": team or None, "cursor": cursor or None, "limit": LIMIT}
    queue, outlook, teams = await asyncio.gather(
        view.api.get("/v1/queue", Queue, asked), _outlook(view), view.teams()
    )
    found = outlook if isinstance(outlook, QueueOutlook) else None
    return view.render(
        "queue/page.html",
        queue=queue,
        shards=shards(queue, found, view),
        unknown="" if found is not None else outlook,
        as_of=view.now if found is None else found.as_of,
        team=team,
        teams=teams,
        cursor=cursor,
        orders=ORDERS,
        first=FIRST,
    )


async def _outlook(view: View) -> QueueOutlook | str:
    """Expected starts, or why there are none yet: the page is there without them too."""
    try:
        asked = view.api.get("/v1/queue/outlook", QueueOutlook)
        return await asyncio.wait_for(asked, OUTLOOK_WAIT_S)
    except TimeoutError:
        return "the estimate takes longer than usual"
    except ApiError as error:
        if error.status not in {429, 503}:
            raise
        return error.detail
    except GatewayAwayError as error:
        return str(error)


def shards(queue: Queue, outlook: QueueOutlook | None, view: View) -> list[Shard]:
    """Each shard that has jobs of the page, or an outlook."""
    outlooks: Mapping[int, ShardOutlook] = (
        {} if outlook is None else {item.shard: item for item in outlook.shards}
    )
    names = {entry.job_id: entry.name for entry in queue.queue}
    found = []
    for number in sorted({*outlooks, *(entry.shard for entry in queue.queue)}):
        one = outlooks.get(number)
        starts = {} if one is None else {item.job_id: item for item in one.starts}
        rows = [(entry, starts.get(entry.job_id)) for entry in queue.queue if entry.shard == number]
        now = view.now if outlook is None else outlook.as_of
        drawn = None if one is None else timeline(one, names, now)
        found.append(Shard(number, tuple(rows), one, drawn))
    return found


PAGE = Page("queue", "Queue", nav="/queue", icon="queue", get={"/queue": _show})
