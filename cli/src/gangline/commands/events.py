"""`gangline events`: the tail of any topic, readable."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer

from gangline import render
from gangline.session import Session
from gangline_schemas.api.logs import BusEvent

_NEWEST = 50
_LEFT_OUT = frozenset({"job_id", "run_id", "node_id", "spec", "incarnation"})
_FIRST = ("state", "previous", "status", "reason", "cause", "action", "message", "step", "rank")


def events(
    session: Session,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Print new events as they come.")
    ] = False,
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", help="requests, quota, scheduling, faults, checkpoints, ..."),
    ] = None,
    job: Annotated[str | None, typer.Option(help="All events about one job instead.")] = None,
    from_start: Annotated[
        bool, typer.Option("--from-start", help="With -f: print all earlier events first.")
    ] = False,
    limit: Annotated[
        int | None,
        typer.Option(
            "-n", "--limit", min=1, help="At most this many, the newest (50; with --job all)."
        ),
    ] = None,
) -> None:
    """Decisions of the services and reports of the nodes, one event a line.

    All topics but heartbeats unless --topic names some (it may be repeated).

    Needs an admin's token, except with --job.
    """
    found: Iterable[BusEvent]
    if job is None:
        found = session.client.events(
            topic or (), follow=follow, from_start=from_start, limit=limit or _NEWEST
        )
    else:
        found = session.client.job_events(job, follow=follow)
        if limit is not None and not follow:
            found = deque(found, maxlen=limit)
    try:
        for event in found:
            session.out.line(event, event_line(event))
    except KeyboardInterrupt:
        return


def event_line(event: BusEvent) -> str:
    """Time, type, subject and data on one line. Only the data is cut, at 80 columns."""
    head = render.plain(f"{event.time:%H:%M:%S} {event.type} {event.subject}")
    text = render.plain(f"{head}  {brief(event.data)}".rstrip())
    return render.shorten(text, max(render.WIDTH, len(head) + 1))


def brief(data: Mapping[str, Any]) -> str:
    """The main fields first: scalars as name=value, lists by length, objects by their id."""
    parts = []
    rank = {name: place for place, name in enumerate(_FIRST)}
    for name, value in sorted(data.items(), key=lambda item: rank.get(item[0], len(_FIRST))):
        if name in _LEFT_OUT or value is False or value in (None, "", [], {}):
            continue
        if isinstance(value, list):
            parts.append(f"{name}={len(value)}")
        elif isinstance(value, dict):
            inner = value.get("step", value.get("node_id", value.get("team")))
            if inner is not None:
                parts.append(f"{name}={inner}")
        elif isinstance(value, float):
            parts.append(f"{name}={render.number(value)}")
        else:
            parts.append(f"{name}={value}")
    return " ".join(parts)
