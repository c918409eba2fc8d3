"""A studies service's state, folded from events with the service's own code."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from gangline_schemas.base import Event
from gangline_schemas.events.studies import (
    EndReason,
    PruneReason,
    StudyCreated,
    StudyEnded,
    StudyEnding,
    TrialCharged,
    TrialCompleted,
    TrialFailed,
    TrialFailure,
    TrialJobEnded,
    TrialJobRequested,
    TrialMeasured,
    TrialPaused,
    TrialProposed,
    TrialPruned,
    TrialStarted,
)
from gangline_schemas.job import JobState
from gangline_schemas.study_file import StudySpec
from gangline_schemas.study_job import job_of
from gangline_studies.core.evolve import fold
from gangline_studies.core.state import StudyState, job_id

START = datetime(2026, 11, 20, 8, tzinfo=UTC)
SPEC: dict[str, Any] = {
    "name": "lr-sweep",
    "team": "nlp",
    "objective": {"metric": "eval_loss"},
    "space": {
        "lr": {"type": "float", "low": 1e-4, "high": 1e-1, "log": True},
        "opt": {"type": "choice", "values": ["sgd", "adam"]},
    },
    "sampler": "random",
    "stopping": {"kind": "asha", "min_steps": 10, "max_steps": 90, "mode": "promote"},
    "limits": {"trials": 8, "parallel": 2},
    "job": {"command": ["python", "train.py"], "resources": {"gpus": 1}},
}


class Studies:
    """The state, and a clock that moves with each event."""

    def __init__(self) -> None:
        self.state = StudyState()
        self.now = START

    def add(self, event: Event) -> None:
        """Fold one event a minute after the one before."""
        self.now += timedelta(minutes=1)
        fold(self.state, event, self.now)

    def create(
        self, study_id: str = "lr-sweep-1", *, size_bytes: int = 0, **fields: Any
    ) -> StudySpec:
        """A study; `fields` replace those of SPEC."""
        spec = StudySpec.model_validate({**SPEC, **fields})
        created = StudyCreated(
            study_id=study_id,
            spec=spec,
            user="ada",
            seed=7,
            created_at=self.now,
            size_bytes=size_bytes,
        )
        self.add(created)
        return spec

    def run(
        self,
        number: int,
        curve: Mapping[int, float | None],
        *,
        end: str = "completed",
        study_id: str = "lr-sweep-1",
        others: Mapping[str, float] | None = None,
        **parameters: Any,
    ) -> None:
        """A trial that reports a curve of the first objective and ends so; "": it runs on."""
        spec = self.state.studies[study_id].spec
        given = {"lr": 1e-2, "opt": "adam", **parameters}
        of = {"study_id": study_id, "number": number}
        self.add(TrialProposed(**of, parameters=given, by="random"))
        job = job_of(spec, study_id, number, given)
        self.add(TrialJobRequested(**of, job_id=job_id(study_id, number, 1), spec=job))
        if not curve:
            return
        self.add(TrialStarted(**of, part=1, attempt=1, gpus=2, allocated_at=self.now))
        rungs = {10: 0, 30: 1}
        values: dict[str, float | None] = {}
        for step, value in curve.items():
            values = {spec.objective[0].metric: value, **(others or {})}
            reached = (rungs[step],) if step in rungs else ()
            self.add(TrialMeasured(**of, part=1, step=step, values=values, rungs=reached))
        if end:
            self._end(of, end, max(curve), values)

    def _end(self, of: dict[str, Any], end: str, step: int, values: dict[str, Any]) -> None:
        ends: dict[str, Event] = {
            "completed": TrialCompleted(**of, step=step, values=values),
            "pruned": TrialPruned(**of, step=step, reason=PruneReason.RUNG, values=values),
            "paused": TrialPaused(**of, step=step, rung=0),
            "failed": TrialFailed(**of, reason=TrialFailure.OUT_OF_MEMORY, message="CUDA OOM"),
        }
        self.add(ends[end])
        self.add(TrialCharged(**of, part=1, attempt=1, gpu_seconds=1800.0))
        state = JobState.FAILED if end == "failed" else JobState.SUCCEEDED
        self.add(TrialJobEnded(**of, part=1, state=state))

    def end(self, study_id: str = "lr-sweep-1") -> None:
        """The study has all its trials."""
        self.add(StudyEnding(study_id=study_id, reason=EndReason.TRIALS))
        self.add(StudyEnded(study_id=study_id, reason=EndReason.TRIALS))


def example() -> Studies:
    """A study with trials in each state, and another team's."""
    made = Studies()
    made.create()
    made.run(0, {10: 3.0, 30: 2.5, 90: 2.0}, lr=1e-2)
    made.run(1, {10: 3.5}, end="pruned", lr=5e-4, opt="sgd")
    made.run(2, {10: 2.8, 30: 2.2, 90: 1.5}, lr=3e-2)
    made.run(3, {10: 2.9}, end="paused", lr=2e-2)
    made.run(4, {10: None}, end="failed", lr=9e-2)
    made.run(5, {10: 2.7}, end="", lr=4e-2)
    made.run(6, {}, lr=5e-2)
    made.create("theirs-1", name="theirs", team="vision")
    return made
