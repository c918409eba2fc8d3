"""The view of lineage: the documented query, over a model that two runs lead to."""

from __future__ import annotations

import re
from pathlib import Path

from gangline_gateway.history import History
from gangline_schemas.events.pipeline_requests import SnapshotAnnounced
from gangline_schemas.events.registry import AliasMoved, VersionBegun, VersionRegistered
from gangline_schemas.models import CheckpointOf
from support.fixtures.tracker import number
from support.harnesses.tracker_process import TrackerProcess
from support.waiting import wait_until

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "clickhouse.md"
MODEL = {"team": "nlp", "model": "summarizer"}
SNAPSHOT = f"news@xxh3-{7:032x}"


def version(tracker: TrackerProcess, registration: int, job: str, to: int) -> None:
    checkpoint = CheckpointOf(job_id=job, attempt=2, step=90)
    begun = VersionBegun(
        **MODEL, registration=registration, checkpoint=checkpoint, snapshot=SNAPSHOT, user="ada"
    )
    tracker.send(begun, "summarizer")
    made = VersionRegistered(**MODEL, registration=registration, version=to)
    tracker.send(made, "summarizer")


def moved(tracker: TrackerProcess, count: int, before: int, to: int, kind: str) -> None:
    event = AliasMoved.model_validate({
        **MODEL, "alias": "champion", "number": count, "from_version": before, "to_version": to,
        "expected": before, "kind": kind, "by": "ben",
    })  # fmt: skip
    tracker.send(event, "summarizer")


def test_the_documented_query_leads_from_the_alias_to_the_sources(
    tracker: TrackerProcess, history: History
) -> None:
    announced = SnapshotAnnounced(
        team="nlp", snapshot=SNAPSHOT, place="s3://data/news", sources=("a.jsonl", "b.jsonl")
    )
    tracker.send(announced, "nlp")
    for count, job in enumerate(("job-a", "job-b"), 1):
        version(tracker, count, job, count)
        moved(tracker, count, count - 1, count, "gate")
    version(tracker, 3, "job-b", 1)  # asked for again: version 1 stays that of job-a
    moved(tracker, 3, 2, 1, "rollback")
    wanted = "SELECT count() FROM events WHERE subject = 'summarizer'"
    wait_until("events", lambda: number(tracker.client(), wanted) == 9)
    found = re.search(r"```sql\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    answer = tracker.client("nlp").query(found[1])
    [row] = [dict(zip(answer.column_names, row, strict=True)) for row in answer.result_rows]
    expected = {
        "model": "summarizer", "alias": "champion", "version": 1, "move": "rollback",
        "moved_by": "ben", "job_id": "job-a", "checkpoint_step": 90, "attempts": 1,
        "incidents": 2, "gpu_hours": 20 / 3600, "lr": "0.1", "snapshot": SNAPSHOT,
        "snapshot_sources": ["a.jsonl", "b.jsonl"],
    }  # fmt: skip
    assert {name: row[name] for name in expected} == expected
    assert tracker.client("vision").query(found[1]).result_rows == []
    assert history.announced("nlp", SNAPSHOT)["place"] == "s3://data/news"
    assert history.announced("vision", SNAPSHOT) == {}
