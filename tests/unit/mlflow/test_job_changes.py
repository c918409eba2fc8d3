"""What the events of a job change in its MLflow run."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from gangline_mlflow.job_changes import INCIDENTS, RESTARTS, Change, EndedAttempt, take
from gangline_mlflow.job_usage import Allocated, NewPoint, Released
from gangline_schemas.base import Event
from gangline_schemas.events.faults import FailureClass
from gangline_schemas.events.scheduling import (
    GangAllocated,
    GangReleased,
    JobQueued,
    JobReprioritized,
    JobStateChanged,
    JobWaiting,
    NodeAdmitted,
    ReleaseReason,
)
from gangline_schemas.job import JobSpec, JobState, TrialRef
from support.builders.gangs import assigned, gang_allocated, gang_failed, gang_released, node_info

AT = datetime(2026, 1, 1, tzinfo=UTC)
MS = 1_767_225_600_000
SPEC = JobSpec.model_validate(
    {
        "name": "sft", "team": "nlp", "project": "chat", "command": ["python", "a b.py"],
        "resources": {"gpus": 2, "gpu_type": ["h100-80gb", "a100-80gb"]}, "seed": 7,
        "hyperparameters": {"lr": 0.1, "model": {"layers": 2}}, "code_ref": "abc",
        "code_diff": "+x", "data_snapshot": "corpus@1",
    }
)  # fmt: skip
QUEUED = JobQueued(job_id="j", spec=SPEC.without_diff(), user="ada", submitted_at=AT)
ASSIGNED = assigned()


def allocated(attempt: int) -> GangAllocated:
    return gang_allocated("j", SPEC.without_diff(), ASSIGNED, attempt=attempt)


def released(attempt: int, reason: ReleaseReason, gpu_seconds: float = 4.0) -> GangReleased:
    return gang_released("j", attempt, AT, reason, gpu_seconds)


def changed(state: JobState) -> JobStateChanged:
    return JobStateChanged(
        job_id="j", attempt=1, previous=JobState.PENDING, state=state, reason="why"
    )


def after(*events: Event, gpu_models: dict[str, str] | None = None) -> Change:
    changes: dict[str, Change] = {}
    for number, event in enumerate(events):
        take(changes, gpu_models if gpu_models is not None else {}, event, at(number))
    assert changes.keys() <= {"j"}
    return changes.get("j", Change())


def at(seconds: int) -> datetime:
    return AT + timedelta(seconds=seconds)


def test_an_admitted_job_is_a_run_that_is_scheduled() -> None:
    change = after(QUEUED)
    assert change.new is not None
    assert change.new.params == {"lr": "0.1", "model": '{"layers": 2}', "seed": "7"}
    assert (change.new.team, change.new.experiment) == ("nlp", "nlp/chat")
    assert change.new.submitted_ms == MS
    assert change.new.source == "python 'a b.py'"
    assert change.status == ("SCHEDULED", None)
    expected = {
        "mlflow.runName": "j", "mlflow.user": "ada", "mlflow.source.git.commit": "abc",
        "gangline.job": "j", "gangline.attempt": "0", "gangline.state": "pending",
        "gangline.gpus": "2", "gangline.gpu_type": "h100-80gb, a100-80gb", "gangline.seed": "7",
        "gangline.data_snapshot": "corpus@1",
        "gangline.code_diff": SPEC.without_diff().code_diff_digest,
    }  # fmt: skip
    assert {name: change.tags.get(name) for name in expected} == expected
    assert "gangline.image" not in change.tags


def test_the_run_of_a_trial_names_its_study_and_lies_in_the_study_s_experiment() -> None:
    trial = TrialRef(study_id="sweep-1", number=3, metrics=("loss",))
    spec = SPEC.without_diff().model_copy(update={"trial": trial})
    change = after(QUEUED.model_copy(update={"spec": spec}))
    assert change.new is not None
    assert change.new.experiment == "nlp/chat/sweep-1"
    expected = {
        "gangline.study": "sweep-1", "gangline.trial": "3", "gangline.trial.metrics": '["loss"]',
    }  # fmt: skip
    assert {name: change.tags.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("state", "status"),
    [
        (JobState.SCHEDULED, ("SCHEDULED", None)), (JobState.RUNNING, ("RUNNING", None)),
        (JobState.CHECKPOINTING, ("RUNNING", None)), (JobState.PREEMPTED, ("SCHEDULED", None)),
        (JobState.SUCCEEDED, ("FINISHED", MS)), (JobState.FAILED, ("FAILED", MS)),
        (JobState.CANCELLED, ("KILLED", MS)),
    ],
)  # fmt: skip
def test_the_state_of_a_job_is_that_of_its_run(
    state: JobState, status: tuple[str, int | None]
) -> None:
    change = after(changed(state))
    assert change.status == status
    assert change.tags == {"gangline.state": state.value, "gangline.reason": "why"}


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        (ReleaseReason.SUCCEEDED, "FINISHED"), (ReleaseReason.FAILED, "FAILED"),
        (ReleaseReason.RESTARTING, "FAILED"), (ReleaseReason.CANCELLED, "KILLED"),
        (ReleaseReason.PREEMPTED, "KILLED"),
    ],
)  # fmt: skip
def test_an_attempt_that_ends_is_charged_and_ends_its_runs(
    reason: ReleaseReason, status: str
) -> None:
    change = after(allocated(3), released(3, reason))
    assert change.points == [NewPoint(RESTARTS, 3, MS, 2.0)]
    assert change.usage == [Allocated(""), Released(3, MS + 1000, 4.0)]
    assert change.ended == [EndedAttempt(3, status, MS + 1000)]
    assert change.tags["gangline.attempt"] == "3"


def test_the_gpu_type_is_that_of_the_gang_s_nodes() -> None:
    node, models = node_info(model="h100-80gb"), dict[str, str]()
    change = after(QUEUED, NodeAdmitted(node=node), allocated(1), gpu_models=models)
    assert change.tags["gangline.gpu_type"] == "h100-80gb"
    assert models == {"n1": "h100-80gb"}
    assert change.usage == [Allocated("h100-80gb")]
    assert after(allocated(1)).tags.get("gangline.gpu_type") is None


def test_an_incident_is_a_point_and_a_tag() -> None:
    change = after(gang_failed("j", 2, at(9), failure_class=FailureClass.NODE, failures=2))
    assert change.points == [NewPoint(INCIDENTS, 2, MS + 9000, 2.0)]
    assert change.tags["gangline.incident"] == "node"


def test_other_events_change_nothing_else() -> None:
    assert after(JobWaiting(job_id="j", code="capacity", message="no room")) == Change()
    assert after(JobReprioritized(job_id="j", priority=3)).tags == {"gangline.priority": "3"}
