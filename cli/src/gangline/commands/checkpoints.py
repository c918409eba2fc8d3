"""`gangline checkpoints`: what a job can start from, what each costs, and how often to save."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from gangline import render
from gangline.commands.jobs import JobId
from gangline.render import NONE, Column
from gangline.session import Session
from gangline_schemas.api.checkpoints import Checkpoint, CheckpointList
from gangline_schemas.checkpoint import checkpoint_prefix

_GATE = "GATE"
_BECAUSE = {"saved": "waits for the store", "corrupted": "is corrupted"}
_PROMOTION = {"promoted": "yes", "refused": "no"}


def checkpoints(
    session: Session,
    job_id: JobId,
    pin: Annotated[
        int | None,
        typer.Option(min=0, metavar="STEP", help="Retain this one until it is unpinned."),
    ] = None,
    unpin: Annotated[
        int | None, typer.Option(min=0, metavar="STEP", help="Let retention delete it again.")
    ] = None,
    promote: Annotated[
        int | None, typer.Option(min=0, metavar="STEP", help="Start a run that validates this one.")
    ] = None,
) -> None:
    """A job's checkpoints, newest first: health, cost, why retained, and the advised interval."""
    if pin is not None:
        session.client.pin(job_id, pin)
    if unpin is not None:
        session.client.pin(job_id, unpin, pinned=False)
    if promote is not None:
        run = session.client.promote(job_id, promote)
        session.out.note(f"step {promote} is validated by {run.job_id}")
    found = session.client.checkpoint_list(job_id)
    if not found.checkpoints and not session.out.json:
        session.out.note("no checkpoint was committed yet")
        return
    now = datetime.now(UTC)
    gate = any(item.promotion for item in found.checkpoints)
    columns = [column for column in _columns(now) if gate or column.title != _GATE]
    table = render.listing(columns, found.checkpoints)
    notes = [*_reasons(found), *_refusals(found), *_written(found), *_scrubs(found, now)]
    session.out.show(found, "\n".join([table, *notes, *_interval(found), *_place(found)]))


def _columns(now: datetime) -> tuple[Column[Checkpoint], ...]:
    return (
        Column("STEP", lambda item: str(item.step), right=True),
        Column("TRY", lambda item: str(item.attempt), right=True),
        Column("HEALTH", _health),
        Column("RETAINED", lambda item: "+".join(_rules(item)) or NONE, flexible=True),
        Column(_GATE, lambda item: _PROMOTION.get(item.promotion, item.promotion) or NONE),
        Column("SIZE", _size, right=True),
        Column("TIER", _tier),
        Column("BLOCK", lambda item: _cost(item, item.blocked_s), right=True),
        Column("WRITE", lambda item: _cost(item, item.write_s), right=True),
        Column("VERIFY", lambda item: _cost(item, item.verify_s), right=True),
        Column("AGE", lambda item: render.short_age(item.committed_at, now), right=True),
    )


def _stored(item: Checkpoint) -> bool:
    return item.status != "saved"


def _size(item: Checkpoint) -> str:
    return render.size(item.size_bytes) if _stored(item) else NONE


def _health(item: Checkpoint) -> str:
    return "scrubbed" if item.status == "committed" and item.scrubbed_at else item.status


def _rules(item: Checkpoint) -> list[str]:
    """Rules that retain it: the user's own first, and no word twice, since the column is short."""
    # The column GATE shows `promoted` too.
    rules = [rule for rule in item.retained if rule != "promoted"] or item.retained
    return sorted(rules, key=lambda rule: rule != "pinned")


def _tier(item: Checkpoint) -> str:
    """nodes, store or both; of one that is gone nowhere."""
    return "both" if len(item.tiers) > 1 else "".join(item.tiers) or NONE


def _cost(item: Checkpoint, seconds: float) -> str:
    """3 ms, 0.2 s, 14 s; of one that is not in the store yet none."""
    if not _stored(item):
        return NONE
    if seconds < 0.1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def _reasons(found: CheckpointList) -> list[str]:
    return [
        render.wrap(f"step {item.step} of attempt {item.attempt} {what}: {item.reason}")
        for item in found.checkpoints
        if item.reason and (what := _BECAUSE.get(item.status)) is not None
    ]


def _refusals(found: CheckpointList) -> list[str]:
    return [
        render.wrap(
            f"step {item.step} of attempt {item.attempt} is not promoted: {item.promotion_reason} "
            f"(gangline logs {item.promotion_run})"
        )
        for item in found.checkpoints
        if item.promotion == "refused"
    ]


def _written(found: CheckpointList) -> list[str]:
    """Of the newest incremental one: what was written, and where the rest lies."""
    for item in found.checkpoints:
        if item.whole_bytes is not None and item.status == "committed":
            steps = ", ".join(str(step) for step in item.refers)
            text = (
                f"{render.size(item.size_bytes)} of {render.size(item.whole_bytes)} for step "
                f"{item.step}; the rest lies in step {steps}"
            )
            return [render.labelled("written:", text, 10)]
    return []


def _scrubs(found: CheckpointList, now: datetime) -> list[str]:
    times = [item.scrubbed_at for item in found.checkpoints if item.scrubbed_at is not None]
    if not times:
        return []
    last = render.short_age(max(times), now)
    text = f"all bytes were read again and found right, the last time {last} ago"
    return [render.labelled("scrubbed:", text, 10)]


def _place(found: CheckpointList) -> list[str]:
    """Where the newest committed one lies in the store, on a line of its own, to be copied."""
    newest = next((item for item in found.checkpoints if item.status == "committed"), None)
    if newest is None or found.prefix is None:
        return []
    return [
        f"step {newest.step} is in the store at",
        checkpoint_prefix(found.prefix, newest.attempt, newest.step),
    ]


def _interval(found: CheckpointList) -> list[str]:
    given = found.interval_s
    notes = []
    if given is not None:
        notes.append(render.labelled("interval:", f"{render.duration(given)} at present", 10))
    advice = found.advice
    if advice is None:
        return notes
    text = f"{render.duration(advice.interval_s)} for attempt {advice.attempt}: {advice.reason}"
    notes.append(render.labelled("advised:", text, 10))
    if advice.risk:
        notes.append(render.labelled("at risk:", advice.risk, 10))
    return notes
