"""A studies service with one study, and the facts about its trials' jobs."""

from __future__ import annotations

from typing import Any

from gangline_schemas.base import Event
from gangline_schemas.events.automation import StudySubmitted
from gangline_schemas.events.faults import FailureCause, FailureClass
from gangline_schemas.events.scheduling import JobStateChanged
from gangline_schemas.events.studies import TrialJobRequested
from gangline_schemas.events.workers import ExitReason, TrialReported, WorkerExited
from gangline_schemas.job import JobState
from gangline_schemas.study_file import StudySpec
from gangline_studies.core.decide import StudyDecider
from gangline_studies.core.snapshot import fingerprint
from gangline_studies.core.state import StudyState
from gangline_studies.core.suggesting import Ask, Suggestion
from support.builders.gangs import gang_allocated, gang_failed
from support.harnesses.decider_run import DeciderRun
from support.harnesses.study_world import PLACE

Run = DeciderRun[StudyState, None]


def spec(**changes: Any) -> StudySpec:
    fields: dict[str, Any] = {
        "name": "s",
        "team": "nlp",
        "objective": {"metric": "loss"},
        "space": {"x": {"type": "float", "low": 0, "high": 1}},
        "job": {"run": "x", "resources": {"gpus": 2}},
        "limits": {"trials": 4, "parallel": 2, "failed": 1},
    }
    return StudySpec.model_validate({**fields, **changes})


def begun(**changes: Any) -> Run:
    """A study whose first trial waits."""
    run: Run = DeciderRun(StudyDecider(), fingerprint)
    run.feed(StudySubmitted(study_id="s", spec=spec(**changes), user="ada"))
    answer(run)
    return run


def answer(run: Run, by: str = "tpe") -> list[Event]:
    ((key, ask),) = run.effects().items()
    assert isinstance(ask, Ask)
    parameters = {"x": ask.number / 10}
    return run.done(key, Suggestion("s", ask.number, parameters, by, ask.results))


def first_job(run: Run) -> TrialJobRequested:
    found = run.events(TrialJobRequested)[0]
    assert isinstance(found, TrialJobRequested)
    return found


def allocated(run: Run, job: str = "s-t0", attempt: int = 1) -> list[Event]:
    gang = gang_allocated(job, first_job(run).spec, PLACE, attempt=attempt, world_size=2)
    return run.feed(gang)


def reported(run: Run, step: int, value: float | None, job: str = "s-t0") -> list[Event]:
    return run.feed(TrialReported(job_id=job, attempt=1, step=step, values={"loss": value}))


def ended(run: Run, state: JobState, job: str = "s-t0", reason: str = "") -> list[Event]:
    return run.feed(
        JobStateChanged(
            job_id=job, attempt=1, previous=JobState.RUNNING, state=state, reason=reason
        )
    )


def exited(run: Run, job: str = "s-t0") -> list[Event]:
    return run.feed(
        WorkerExited(
            job_id=job, attempt=1, rank=0, node_id="n1", incarnation="i",
            reason=ExitReason.FINISHED, exit_code=0,
        )
    )  # fmt: skip


def failed(run: Run, kind: FailureClass, action: str = "fail") -> list[Event]:
    cause, why = FailureCause.USER_ERROR, "why"
    return run.feed(gang_failed("s-t0", 1, run.now, cause, action, message=why, failure_class=kind))


def only(run: Run, kind: type[Any]) -> Any:
    (found,) = run.events(kind)
    return found
