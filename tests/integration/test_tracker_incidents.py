"""Incidents in the tracker's database: lists, totals, filters, one incident with its stacks."""

from __future__ import annotations

from datetime import timedelta

import pytest

from gangline_gateway.incidents import IncidentFilter, Incidents
from gangline_gateway.sql_parts import CursorError
from gangline_schemas.api.incidents import Share
from gangline_schemas.events.faults import GangTroubled, JobFlagged, WorkerStraggling
from gangline_schemas.events.heartbeats import TroubleKind
from gangline_schemas.events.workers import WorkerStacks
from support.fixtures.tracker import BASE
from support.harnesses.tracker_process import TrackerProcess
from support.waiting import wait_until


def test_incidents_are_listed_page_by_page_with_their_totals(tracker: TrackerProcess) -> None:
    incidents = Incidents(tracker.client("service"))
    everything = IncidentFilter()
    first, cursor = incidents.page(everything, limit=4)
    rest, end = incidents.page(everything, limit=4, cursor=cursor)
    found = [(row.job_id, row.attempt, row.outcome) for row in first + rest]
    assert found == [
        (job, attempt, outcome)
        for job in ("job-c", "job-b", "job-a")
        for attempt, outcome in ((2, "open"), (1, "recovered"))
    ]
    assert end is None
    closed = rest[-1]
    assert (closed.recover_s, closed.lost_gpu_s, closed.avoid_nodes) == (2.0, 14.0, ["node-2"])
    assert (closed.failed_at, closed.review, closed.allocated_at) == (BASE, False, None)
    opened = rest[-2]
    assert (opened.failure_class, opened.lost_gpu_s, opened.recover_s) == ("node", 20.0, None)
    totals = incidents.totals(everything)
    assert (totals.incidents, totals.recovered, totals.lost_gpu_s) == (6, 3, 102.0)
    assert (totals.recover_median_s, totals.recover_p95_s) == (2.0, 2.0)
    assert totals.by_class == [
        Share(name="node", incidents=3, lost_gpu_s=60.0),
        Share(name="process", incidents=3, lost_gpu_s=42.0),
    ]
    assert totals.by_node == [Share(name="node-2", incidents=6, lost_gpu_s=102.0)]
    assert totals.by_job == [
        Share(name=f"job-{name}", incidents=2, lost_gpu_s=34.0) for name in "abc"
    ]
    assert totals.by_shard == []


def test_incidents_are_chosen(tracker: TrackerProcess) -> None:
    incidents = Incidents(tracker.client("service"))

    def jobs(wanted: IncidentFilter) -> list[tuple[str, int]]:
        return [(row.job_id, row.attempt) for row in incidents.page(wanted)[0]]

    assert jobs(IncidentFilter(teams=frozenset({"vision"}))) == [("job-c", 2), ("job-c", 1)]
    assert jobs(IncidentFilter(job_id="job-a", classes=("node",))) == [("job-a", 2)]
    assert jobs(IncidentFilter(since=BASE + timedelta(minutes=2, seconds=30))) == [("job-c", 2)]
    assert jobs(IncidentFilter(node_id="node-9")) == []
    nothing = incidents.totals(IncidentFilter(job_id="nobody"))
    assert (nothing.incidents, nothing.recover_median_s, nothing.by_node) == (0, None, [])
    with pytest.raises(CursorError):
        incidents.page(IncidentFilter(), cursor="1.job")


def test_one_incident_is_found_with_its_stacks_and_what_was_noticed(
    tracker: TrackerProcess,
) -> None:
    for rank in (1, 0):
        for attempt in (1, 2):
            stacks = WorkerStacks(
                job_id="job-a",
                attempt=attempt,
                rank=rank,
                node_id=f"node-{rank}",
                pid=7,
                state="stopped",
                stacks=f"of attempt {attempt}",
            )
            tracker.send(stacks, "job-a")
    slow = WorkerStraggling(
        job_id="job-a", attempt=2, team="nlp", rank=1, node_id="node-1", busy_s=0.4, usual_s=0.2,
        against="gang", relative=0.5, individual=1.0, host=0.5, message="rank 1 is slow",
        since=BASE, noted_at=BASE,
    )  # fmt: skip
    tracker.send(slow, "job-a")
    spike = GangTroubled(
        job_id="job-c", attempt=1, team="vision", kind=TroubleKind.LOSS_SPIKE, rank=0,
        node_id="node-2", step=9, message="the loss leapt up", noted_at=BASE,
    )  # fmt: skip
    tracker.send(spike, "job-c")
    for block in (3, 4):
        flagged = JobFlagged(
            job_id="job-c", attempt=1, rank=0, node_id="node-2", snapshot="corpus", shard="s-1",
            block=block, reason="its digest differs", flagged_at=BASE,
        )  # fmt: skip
        tracker.send(flagged, "job-c")
    incidents = Incidents(tracker.client("service"))
    blocks = [Share(name="corpus/s-1", incidents=2, lost_gpu_s=0.0)]
    wait_until("flags", lambda: incidents.totals(IncidentFilter()).by_shard == blocks)
    vision, nlp = frozenset({"vision"}), frozenset({"nlp"})
    assert incidents.totals(IncidentFilter(teams=vision)).by_shard == blocks
    assert incidents.totals(IncidentFilter(teams=nlp)).by_shard == []
    assert incidents.totals(IncidentFilter(job_id="job-a")).by_shard == []
    wait_until("both notices", lambda: len(incidents.notices(IncidentFilter())) == 2)

    def noticed(wanted: IncidentFilter) -> list[tuple[str, int, str, int, str, str]]:
        return [
            (row.job_id, row.attempt, row.kind, row.rank, row.node_id, row.message)
            for row in incidents.notices(wanted)
        ]

    of_a = ("job-a", 2, "straggling", 1, "node-1", "rank 1 is slow")
    of_c = ("job-c", 1, "loss_spike", 0, "node-2", "the loss leapt up")
    assert {*noticed(IncidentFilter())} == {of_a, of_c}
    assert noticed(IncidentFilter(job_id="job-a")) == [of_a]
    assert noticed(IncidentFilter(teams=frozenset({"vision"}))) == [of_c]
    assert noticed(IncidentFilter(node_id="node-2", since=BASE)) == [of_c]
    assert noticed(IncidentFilter(classes=("node",))) == []
    found = incidents.one("job-a", 2, None)
    assert found is not None
    assert (found.attempt, found.outcome) == (2, "open")
    assert incidents.one("job-a", 2, frozenset({"vision"})) is None
    assert incidents.one("job-a", 9, None) is None
    told = incidents.stacks("job-a", 2)
    assert [(item.rank, item.node_id, item.stacks) for item in told] == [
        (0, "node-0", "of attempt 2"),
        (1, "node-1", "of attempt 2"),
    ]
