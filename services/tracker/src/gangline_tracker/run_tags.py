"""Tags of runs -> run_tags: those set through Gangline, and by MLflow's clients on jobs' runs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from gangline_bus.codec import Received
from gangline_schemas.events.metrics import TagsLogged
from gangline_schemas.events.requests import RunTagged

_EPOCH, _STEP = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)


def tags_table(received: Sequence[Received]) -> pa.Table:
    """A row for each tag of these events. A later one replaces it, from whichever topic it is."""
    rows = [
        (event.team, event.job_id, name, value or "", value is None, max(0, at))
        for item in received
        if isinstance(event := item.envelope.data, RunTagged | TagsLogged)
        for at in [(item.envelope.time - _EPOCH) // _STEP]
        for name, value in event.tags.items()
    ]
    kinds = (*(pa.string(),) * 4, pa.bool_(), pa.uint64())
    names = ("team", "job_id", "name", "value", "removed", "version")
    return pa.table(
        {
            name: pa.array([row[place] for row in rows], kind)
            for place, (name, kind) in enumerate(zip(names, kinds, strict=True))
        }
    )
