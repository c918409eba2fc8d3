"""Pipelines, and jobs of their steps that end as a test says."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from gangline_pipelines.core.decide import PipelineDecider
from gangline_pipelines.core.model import Checked, CheckOutputs, Run, StepRun
from gangline_pipelines.core.snapshot import fingerprint
from gangline_pipelines.core.state import step_key
from gangline_schemas.artifacts import Artifact
from gangline_schemas.base import Event
from gangline_schemas.events.faults import FailureCause, GangFailed
from gangline_schemas.events.pipeline_requests import PipelineConfigureRequested, RunRequested
from gangline_schemas.events.pipelines import RunStarted, StepJobRequested, StepJobStopRequested
from gangline_schemas.events.scheduling import GangReleased, JobStateChanged
from gangline_schemas.events.workers import StepOutputWritten
from gangline_schemas.job import JobState
from gangline_schemas.pipeline_file import PipelineSpec
from support.harnesses.decider_run import DeciderRun

TEAM = "nlp"


def job(*command: str, **fields: Any) -> dict[str, Any]:
    """A job with this command."""
    return {"command": command or ("true",), "resources": {"gpus": 1}, **fields}


JOB_GPU_S = 60.0


def pipeline(steps: dict[str, dict[str, Any]], **fields: Any) -> PipelineSpec:
    """A pipeline `p` of these steps, whose `job` may be left out."""
    whole = {name: {"job": job(name), **step} for name, step in steps.items()}
    return PipelineSpec.model_validate({"name": "p", "team": TEAM, "steps": whole, **fields})


def chain(**fields: Any) -> PipelineSpec:
    """Prepare -> train -> report, each with a folder."""
    return pipeline(
        {
            "prepare": {"out": ["tokens"]},
            "train": {"in": {"data": "prepare.tokens"}, "out": {"model": "folder", "acc": "score"}},
            "report": {"in": {"model": "train.model"}, "out": ["page"]},
        },
        **fields,
    )


class PipelineRun(DeciderRun[Any, Any]):
    """The decider, with jobs that live in `jobs` until the test ends them."""

    def __init__(self) -> None:
        super().__init__(PipelineDecider(), fingerprint)
        self.jobs: dict[str, StepJobRequested] = {}
        self.asked_to_stop: list[str] = []
        self.score = 0.9
        self.salt = ""
        self.ids: set[str] = set()

    @property
    def requested(self) -> int:
        """The number of jobs that were requested."""
        return len(self.ids)

    def take(self, received: Any) -> list[Event]:
        """See DeciderRun; jobs that are requested appear in `jobs`."""
        return self._noted(super().take(received))

    def end(self, job_id: str, state: JobState, reason: str = "") -> list[Event]:
        """The scheduler ends a job that ran, and releases its GPUs."""
        return [*self.feed(changed(job_id, state, reason)), *self.feed(released(job_id))]

    def tick(self, after_s: float = 0.0) -> list[Event]:
        """See DeciderRun."""
        return self._noted(super().tick(after_s))

    def done(self, key: str, result: object) -> list[Event]:
        """See DeciderRun."""
        return self._noted(super().done(key, result))

    def _noted(self, events: list[Event]) -> list[Event]:
        for event in events:
            if isinstance(event, StepJobRequested):
                assert event.job_id not in self.ids, "a job was requested twice"
                self.ids.add(event.job_id)
                self.jobs[event.job_id] = event
            elif isinstance(event, StepJobStopRequested):
                self.asked_to_stop.append(event.job_id)
        return events

    def apply(self, spec: PipelineSpec) -> list[Event]:
        """Configure a pipeline."""
        return self.feed(PipelineConfigureRequested(spec=spec, user="ada"))

    def begin(self, **params: Any) -> str:
        """Run `p` now; the id of the run."""
        events = self.feed(RunRequested(team=TEAM, pipeline="p", params=params, user="ada"))
        return next(event.run_id for event in events if isinstance(event, RunStarted))

    def run(self, run_id: str) -> Run:
        """A run as it is now."""
        found: Run = self.state.runs[run_id]
        return found

    def step(self, run_id: str, name: str) -> StepRun:
        """A step of a run as it is now."""
        found: StepRun = self.state.steps[step_key(run_id, name)]
        return found

    def states(self, run_id: str) -> dict[str, str]:
        """The states of all steps of a run."""
        start = f"{run_id}/"
        return {
            key.removeprefix(start): str(step.state)
            for key, step in self.state.steps.items()
            if key.startswith(start)
        }

    def outputs_of(self, requested: StepJobRequested) -> Sequence[StepOutputWritten]:
        """What the job of a step leaves: equal for equal commands and inputs."""
        artifacts = requested.spec.artifacts
        if artifacts is None:
            return []
        text = f"{requested.spec.command}{sorted(artifacts.inputs.items())}{self.salt}"
        return [
            StepOutputWritten(
                job_id=requested.job_id,
                attempt=1,
                node_id="node-0",
                name=name,
                artifact=Artifact(
                    digest=hashlib.md5(f"{text}{name}".encode()).hexdigest(),
                    size_bytes=1,
                    files=1,
                    value=self.score if kind == "score" else None,
                ),
            )
            for name, kind in artifacts.outputs.items()
        ]

    def succeed(self, *job_ids: str) -> None:
        """End these jobs well, with their outputs; all that live if none is named."""
        for job_id in job_ids or tuple(self.jobs):
            requested = self.jobs.pop(job_id)
            for written in self.outputs_of(requested):
                self.feed(written)
            self.end(job_id, JobState.SUCCEEDED)

    def fail(self, job_id: str, cause: FailureCause = FailureCause.USER_ERROR) -> None:
        """End a job by a failure."""
        del self.jobs[job_id]
        self.feed(failure(job_id, cause))
        self.end(job_id, JobState.FAILED, "it exited with code 1")

    def check(self, missing: Callable[[str], bool] = lambda _: False) -> int:
        """Do the checks of outputs and commit records until there are none; how many there were."""
        count = 0
        while effects := self.effects():
            for key, effect in effects.items():
                assert isinstance(effect, CheckOutputs)
                count += 1
                lost = (
                    tuple(one for one in some if missing(one))
                    for some in (effect.digests, effect.saves)
                )
                self.done(key, Checked(*lost))
        return count

    def finish(self) -> None:
        """Let all jobs succeed and all checks pass, until nothing is left to do."""
        while self.jobs or self.effects():
            self.check()
            if self.jobs:
                self.succeed()


def changed(job_id: str, state: JobState, reason: str = "") -> JobStateChanged:
    """The scheduler's news of a job."""
    return JobStateChanged(
        job_id=job_id, attempt=1, previous=JobState.RUNNING, state=state, reason=reason
    )


def released(job_id: str) -> GangReleased:
    """The scheduler's news that a job's GPUs are free again, after JOB_GPU_S."""
    values = {"job_id": job_id, "attempt": 1, "reason": "succeeded", "gpu_seconds": JOB_GPU_S}
    return GangReleased.model_validate({**values, "allocated_at": "2026-11-21T08:00:00Z"})


def failure(job_id: str, cause: FailureCause) -> GangFailed:
    """The fault manager's news of a job that fails for good."""
    values = {"job_id": job_id, "attempt": 1, "cause": cause, "action": "fail"}
    last = {"message": "it broke", "restarts_used": 0, "restarts_max": 0}
    return GangFailed.model_validate({**values, **last, "failed_at": "2026-11-21T08:00:00Z"})
