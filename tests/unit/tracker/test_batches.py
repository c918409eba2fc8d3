"""Records become rows: whole records, every value once, nothing that does not fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from gangline_bus.codec import Received
from gangline_schemas.base import Event
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.heartbeats import GpuStatus, GpuUse, NodeUse, WorkerHeartbeat
from gangline_schemas.events.logs import LogLine, WorkerLog
from gangline_schemas.events.metrics import MetricLogged, MetricsRemoved, TagsLogged
from gangline_schemas.events.quota import JobRejected
from gangline_schemas.events.requests import RunTagged
from gangline_schemas.events.scheduling import (
    JobQueued,
    JobStateChanged,
    JobWaiting,
    NodeAdmitted,
    ReleaseReason,
)
from gangline_schemas.events.steps import WorkerStep
from gangline_schemas.job import JobSpec, JobState
from gangline_schemas.resources import Resources
from gangline_tracker.batches import HeartbeatBatch, Insert, LogBatch, Removal, StepBatch
from gangline_tracker.event_batch import EventBatch, team_of
from gangline_tracker.metric_batch import MetricBatch
from gangline_tracker.run_tags import tags_table
from gangline_tracker.runs import Run, evolve
from support.builders.gangs import assigned, gang_allocated, gang_released, node_info

NOW = datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC)


def received(event: Event, offset: int = 0, topic: str = "gangline.steps") -> Received:
    return Received(Envelope(f"id-{offset}", "test", NOW, "job-1", event), topic, 2, offset)


def steps(**changes: object) -> WorkerStep:
    fields: dict[str, object] = {
        "run_id": "run-1",
        "team": "nlp",
        "attempt": 2,
        "rank": 3,
        "step": (10, 11),
        "time_ms": (1_000, 2_000),
        "metrics": {"loss": (1.5, 1.25), "lr": (None, 0.1)},
    }
    return WorkerStep.model_validate(fields | changes)


def test_steps_become_one_row_per_value() -> None:
    batch = StepBatch()
    batch.add(received(steps(), offset=7))
    batch.add(received(steps(run_id="run-2", rank=0, metrics={"loss": (3.0, 2.0)}), offset=8))
    (insert,) = batch.inserts(NOW)
    rows = insert.rows.select(["run_id", "rank", "name", "step", "value", "offset"]).to_pylist()
    assert insert.table == "steps"
    assert [tuple(row.values()) for row in rows] == [
        ("run-1", 3, "loss", 10, 1.5, 7),
        ("run-1", 3, "loss", 11, 1.25, 7),
        ("run-1", 3, "lr", 11, 0.1, 7),
        ("run-2", 0, "loss", 10, 3.0, 8),
        ("run-2", 0, "loss", 11, 2.0, 8),
    ]
    assert set(insert.rows.column("ingested").to_pylist()) == {NOW}  # one partition


def test_a_record_of_another_type_is_refused() -> None:
    for batch in (StepBatch(), LogBatch(), HeartbeatBatch(), MetricBatch()):
        with pytest.raises(TypeError):
            batch.add(received(JobWaiting(job_id="job-1", code="capacity", message="")))
        assert batch.inserts(NOW) == []


def test_points_become_one_row_each() -> None:
    event = MetricLogged(
        run_id="r" * 32, team="nlp", name=("loss", "acc"), step=(-1, 2**62), time_ms=(5, 6),
        value=(1.5, None),
    )  # fmt: skip
    batch = MetricBatch()
    batch.add(received(event, offset=9, topic="gangline.metrics"))
    (insert,) = batch.inserts(NOW)
    assert isinstance(insert, Insert)
    columns = ["name", "step", "time_ms", "value", "is_nan", "partition", "offset"]
    assert [tuple(row.values()) for row in insert.rows.select(columns).to_pylist()] == [
        ("loss", -1, 5, 1.5, False, 2, 9),
        ("acc", 2**62, 6, 0.0, True, 2, 9),
    ]
    assert batch.rows() == 2


def test_a_removal_takes_the_points_before_it_and_leaves_its_position() -> None:
    def point(run_id: str, step: int) -> MetricLogged:
        return MetricLogged(
            run_id=run_id, team="nlp", name=("loss",), step=(step,), time_ms=(0,), value=(1.0,)
        )

    batch = MetricBatch()
    events = (
        point("gone", 1), point("stays", 2), MetricsRemoved(run_id="gone", team="nlp"),
        point("gone", 3),
    )  # fmt: skip
    for offset, event in enumerate(events):
        batch.add(received(event, offset=offset, topic="gangline.metrics"))
    assert batch.rows() == 3
    removal, insert = batch.inserts(NOW)
    assert removal == Removal("metric_points", ("gone",))
    assert isinstance(insert, Insert)
    rows = insert.rows.select(["run_id", "step", "offset"]).to_pylist()
    assert [tuple(row.values()) for row in rows] == [("stays", 2, 1), ("", 0, 2), ("gone", 3, 3)]


def test_tags_of_a_job_leave_their_position_and_replace_earlier_ones() -> None:
    batch = MetricBatch()
    key = {"job_id": "a", "team": "nlp"}
    logged = TagsLogged(run_id="run", **key, tags={"stage": "production", "draft": None})
    batch.add(received(logged, offset=7, topic="gangline.metrics"))
    assert batch.rows() == 1
    tags, points = batch.inserts(NOW)
    assert isinstance(tags, Insert)
    assert isinstance(points, Insert)
    assert (tags.table, points.table) == ("run_tags", "metric_points")
    assert points.rows.select(["run_id", "offset"]).to_pylist() == [{"run_id": "", "offset": 7}]
    production, draft = tags.rows.to_pylist()
    assert (production["name"], production["value"]) == ("stage", "production")
    assert (draft["name"], draft["removed"]) == ("draft", True)
    request = received(RunTagged(**key, tags={"stage": "old"}), offset=10**6)
    before = replace(request, envelope=replace(request.envelope, time=NOW - timedelta(seconds=1)))
    (older,) = tags_table([before]).to_pylist()
    assert older["version"] < production["version"], "the times count, not the offsets"


def test_logs_and_heartbeats() -> None:
    logs = LogBatch()
    lines = (
        LogLine(time_ms=5, stream="stdout", text="a"),
        LogLine(time_ms=6, stream="stderr", text="é\n"),
    )
    logs.add(
        received(
            WorkerLog(
                job_id="job-1",
                team="nlp",
                attempt=1,
                rank=0,
                node_id="n",
                first_line=40,
                lines=lines,
            )
        )
    )
    rows = logs.inserts(NOW)[0].rows.to_pylist()
    assert [(row["line"], row["stream"], row["text"]) for row in rows] == [
        (40, "stdout", "a"),
        (41, "stderr", "é\n"),
    ]
    beats = HeartbeatBatch()
    beats.add(
        received(
            WorkerHeartbeat(
                node_id="n",
                incarnation="i",
                sequence=1,
                sent_at=NOW,
                gpus=(GpuStatus(index=0, utilization=50.0),),
            )
        )
    )
    (row,) = beats.inserts(NOW)[0].rows.to_pylist()
    assert (row["gpu_index"], row["gpu_utilization"], row["jobs"]) == ([0], [50.0], [])
    assert (row["gpu_power_w"], row["disk_read_mb_s"]) == ([], None)


def test_the_use_of_a_node_stands_in_its_heartbeat() -> None:
    beats, use = HeartbeatBatch(), NodeUse(read_at=NOW, network_send_mb_s=3.0)
    use = use.model_copy(update={"gpus": (GpuUse(index=1, power_w=300.0),)})
    gpus = (GpuStatus(index=0), GpuStatus(index=1))
    beats.add(
        received(
            WorkerHeartbeat(
                node_id="n", incarnation="i", sequence=1, sent_at=NOW, gpus=gpus, use=use
            )
        )
    )
    (row,) = beats.inserts(NOW)[0].rows.to_pylist()
    assert (row["gpu_power_w"], row["gpu_sm_percent"]) == ([None, 300.0], [None, None])
    assert (row["network_send_mb_s"], row["disk_read_mb_s"]) == (3.0, None)


class Rows:
    """What the table holds, as a dict."""

    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}
        self.known: dict[str, str] = {}

    def find(self, jobs: Sequence[str]) -> Mapping[str, Run]:
        return {job: self.runs[job] for job in jobs if job in self.runs}

    def models(self) -> dict[str, str]:
        return self.known

    def keep(self, runs: Iterable[Run]) -> None:
        self.runs |= {run.job_id: run for run in runs}


SPEC = JobSpec(
    name="sft",
    team="nlp",
    run="true",
    resources=Resources(gpus=4),
    hyperparameters={"lr": 3e-4, "opt": "adamw"},
    seed=7,
    code_diff="x" * 1000,
)
STORY = (
    JobQueued(job_id="job-1", spec=SPEC, user="ann", submitted_at=NOW),
    JobWaiting(job_id="job-1", code="capacity", message="4 GPUs wanted, 2 free"),
    JobStateChanged(
        job_id="job-1", attempt=1, previous=JobState.INITIALIZING, state=JobState.RUNNING
    ),
    gang_released("job-1", 1, NOW, ReleaseReason.SUCCEEDED, 40.0),
    JobStateChanged(job_id="job-1", attempt=1, previous=JobState.RUNNING, state=JobState.SUCCEEDED),
)


def test_a_run_is_the_fold_of_the_scheduling_log_however_often_it_is_read() -> None:
    run = Run("job-1")
    for offset, event in enumerate(STORY):
        run = evolve(run, event, offset, NOW + timedelta(seconds=offset))
    again = run
    for offset, event in enumerate(STORY):
        again = evolve(again, event, offset, NOW + timedelta(hours=1))
    assert again == run
    assert (run.state, run.gpu_seconds, run.version) == ("succeeded", 40.0, 5)
    assert run.started_at == NOW + timedelta(seconds=2)
    assert run.ended_at == NOW + timedelta(seconds=4)
    assert run.hyperparameters == {"lr": "0.0003", "opt": "adamw", "seed": "7"}
    assert '"code_diff"' not in run.spec


def test_events_come_last_and_derived_rows_are_the_same_each_time() -> None:
    rows = Rows()

    def write(first: int, last: int) -> list[str]:
        batch = EventBatch(rows, "lab-")
        for offset in range(first, last):
            batch.add(received(STORY[offset], offset, "lab-gangline.scheduling"))
        inserts = batch.inserts(NOW)
        assert inserts[-1].rows.column("topic").to_pylist() == ["gangline.scheduling"] * (
            last - first
        )
        return [insert.table for insert in inserts]

    assert write(0, 3) == ["runs", "events"]
    before = rows.runs["job-1"]
    assert write(1, 3) == ["events"]  # read again after a crash: nothing new for runs
    assert rows.runs["job-1"] == before
    write(3, 5)
    assert rows.runs["job-1"].gpu_seconds == 40.0


def test_gpu_seconds_are_kept_by_model() -> None:
    rows, model_rows = Rows(), {"h100-80gb": 40.0}
    node = node_info(model="h100-80gb")
    gang = gang_allocated("job-1", SPEC, assigned())
    for offset, event in enumerate((STORY[0], NodeAdmitted(node=node), gang, STORY[3])):
        batch = EventBatch(rows)  # each in a batch of its own
        batch.add(received(event, offset, "gangline.scheduling"))
        batch.inserts(NOW)
    run = rows.runs["job-1"]
    assert (run.gpu_model, run.gpu_model_seconds, run.gpu_seconds) == (
        "h100-80gb", model_rows, 40.0,
    )  # fmt: skip
    other = evolve(run, gang.model_copy(update={"attempt": 2}), 9, NOW)
    unknown = evolve(other, STORY[3], 10, NOW)
    assert (unknown.gpu_model, unknown.gpu_model_seconds) == ("", model_rows)
    assert unknown.gpu_seconds == 80.0


def test_a_rejected_job_has_a_row_but_never_hides_a_queued_one() -> None:
    rejected = JobRejected(job_id="job-1", reason="no such team", team="nlp", submitted_at=NOW)
    run = evolve(Run("job-1"), rejected, 9, NOW)
    assert (run.state, run.reason, run.version) == ("rejected", "no such team", 0)
    queued = evolve(run, STORY[0], 0, NOW)
    assert (queued.state, queued.ended_at) == ("pending", None)
    assert evolve(queued, rejected, 10, NOW) == queued


def test_the_team_of_an_event_is_the_one_it_names() -> None:
    assert team_of(STORY[0]) == "nlp"
    assert team_of(steps()) == "nlp"
    assert team_of(STORY[1]) == ""
