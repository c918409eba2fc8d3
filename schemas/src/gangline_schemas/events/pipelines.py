"""gangline.pipelines: pipelines, their runs, and each step of a run. By the pipelines service."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints

from gangline_schemas.artifacts import Artifact, DigestHex, OutputName
from gangline_schemas.base import Event, Identifier, Model, Timestamp
from gangline_schemas.events.automation import StudyRequest, StudyStopRequest
from gangline_schemas.events.faults import FailureCause
from gangline_schemas.events.requests import JobRequest, JobStopRequest
from gangline_schemas.events.scheduling import CheckpointRef
from gangline_schemas.events.studies import BestTrial
from gangline_schemas.limits import (
    Amount,
    Bytes,
    Count,
    Few,
    Label,
    Message,
    ObjectKey,
    RequestCeId,
    RequestCeSource,
    Step,
    User,
)
from gangline_schemas.models import (
    AliasedVersion,
    AliasName,
    CheckpointOf,
    MaybeVersion,
    ModelName,
)
from gangline_schemas.pipeline_file import MAX_OUTPUTS, MAX_RETRIES, Params, PipelineSpec

MOST_SWEPT = 10_000
"""Entries of the cache, and runs, of one sweep at most."""
TriggerKind = Literal["manual", "snapshot", "schedule", "drift"]
RunResult = Literal["succeeded", "failed", "cancelled"]
StepResult = Literal["succeeded", "failed", "skipped", "blocked", "cancelled"]
"""blocked: a step that it needs has failed."""
Outputs = Annotated[dict[OutputName, Artifact], Field(max_length=64)]
Subject = Annotated[Label, Field(description="A snapshot, a time, a finding, or a request.")]
KeyParts = Annotated[
    dict[Annotated[str, StringConstraints(max_length=128)], DigestHex], Field(max_length=2100)
]
"""Digests of what a step's result depends on, by name: command, code, seed, resume, in.NAME."""


class _Answer(Event):
    """Says which request it answers, if any."""

    user: User = ""
    request_id: RequestCeId = ""
    request_source: RequestCeSource = ""


class PipelineConfigured(_Answer):
    """This is the pipeline from here on. Runs that began keep theirs."""

    type: ClassVar[str] = "pipeline.configured"
    revision: Few = Field(ge=1)
    spec: PipelineSpec
    size_bytes: Bytes = Field(default=0, description="Of the spec as JSON.")
    active: Identifier | None = Field(
        default=None, description="A run that has not ended, of one so named that was removed."
    )


class PipelineRemoved(_Answer):
    """The pipeline is forgotten; its queued runs with it."""

    type: ClassVar[str] = "pipeline.removed"
    team: Identifier
    pipeline: Identifier


class PipelinePaused(_Answer):
    """Triggers start no runs of it."""

    type: ClassVar[str] = "pipeline.paused"
    team: Identifier
    pipeline: Identifier
    reason: Message


class PipelineUnpaused(_Answer):
    """Triggers start runs again. Times that passed meanwhile count as missed."""

    type: ClassVar[str] = "pipeline.unpaused"
    team: Identifier
    pipeline: Identifier


class PipelineRequestRefused(_Answer):
    """A request was refused, and why."""

    type: ClassVar[str] = "pipeline.request.refused"
    reason: Message


class RunCause(Model):
    """The start of a run. Its id is derived from the pipeline, the trigger and the subject."""

    kind: TriggerKind
    trigger: Identifier = Field(description="Its name in the file, or manual.")
    subject: Subject
    due_at: Timestamp | None = Field(default=None, description="Of a schedule.")
    params: Params = Field(default_factory=dict)


class _OfRun(_Answer):
    run_id: Identifier
    team: Identifier
    pipeline: Identifier
    cause: RunCause


class RunQueued(_OfRun):
    """A run waits for the end of another one of its pipeline."""

    type: ClassVar[str] = "pipeline.run.queued"


class RunSkipped(_OfRun):
    """A run that was due will never start. Its cause counts as seen."""

    type: ClassVar[str] = "pipeline.run.skipped"
    reason: Message


class RunStarted(_OfRun):
    """A run began."""

    type: ClassVar[str] = "pipeline.run.started"
    revision: Few = Field(ge=1)
    number: Few = Field(ge=1, description="Of the runs of its pipeline.")


class TimesMissed(Event):
    """Times of a schedule passed while the service was away, and lead to no run."""

    type: ClassVar[str] = "pipeline.times.missed"
    team: Identifier
    pipeline: Identifier
    trigger: Identifier
    until: Timestamp = Field(description="The last of them.")
    count: Few = Field(ge=1, description="At most 1000 are counted.")


class RunStopping(_Answer):
    """A run ends early: its jobs are asked to stop, its other steps do not start."""

    type: ClassVar[str] = "pipeline.run.stopping"
    run_id: Identifier
    result: RunResult
    reason: Message


class RunRetried(_Answer):
    """A run continues from its failed steps. Steps that succeeded stay as they are."""

    type: ClassVar[str] = "pipeline.run.retried"
    run_id: Identifier


class RunEnded(Event):
    """Each step of a run has ended."""

    type: ClassVar[str] = "pipeline.run.ended"
    run_id: Identifier
    result: RunResult
    reason: Message = ""
    failed_in_row: Few = Field(default=0, description="Triggered runs of its pipeline, with it.")


class StepKeyed(Event):
    """A step has its inputs, and so its key. With `hit` its outputs may be those of another run."""

    type: ClassVar[str] = "pipeline.step.keyed"
    run_id: Identifier
    step: Identifier
    key: DigestHex
    parts: KeyParts
    reason: Message = Field(description="Why it is a hit, or runs: the parts that changed.")
    hit: Identifier | None = Field(default=None, description="The run that made the outputs.")
    hit_job: Identifier | None = Field(default=None, description="The job that made them.")
    hit_save: ObjectKey | None = Field(
        default=None, description="The commit record from which another step starts."
    )
    outputs: Outputs = Field(default_factory=dict, description="Of a hit; to be checked.")
    check: Few = Field(default=0, description="Of a hit: the check that decides it.")
    starts_from: AliasedVersion | None = Field(
        default=None, description="The version that `resume: NAME@ALIAS` meant at this moment."
    )


class OutputsChecked(Event):
    """The outputs of the hits of a check are in the store, except the missing ones.

    A step with a missing output runs again, and one whose checkpoint is gone.
    """

    type: ClassVar[str] = "pipeline.outputs.checked"
    run_id: Identifier
    check: Few
    missing: tuple[DigestHex, ...] = Field(default=(), max_length=MAX_OUTPUTS)
    gone: tuple[ObjectKey, ...] = Field(
        default=(), max_length=MAX_OUTPUTS, description="Commit records of checkpoints."
    )
    tries: Few = Field(default=0, description="Of the check, while the store was away.")


class CheckDeferred(Event):
    """The store was away; the check is made again then."""

    type: ClassVar[str] = "pipeline.check.deferred"
    run_id: Identifier
    check: Few
    tries: Few = Field(ge=1)
    reason: Message
    next_at: Timestamp


class StepJobRequested(JobRequest):
    """A step's job; quota admits it as if it had been submitted."""

    type: ClassVar[str] = "step.job.requested"
    run_id: Identifier
    step: Identifier
    tries: Few = Field(ge=1, description="Of this step, with this one.")
    start: CheckpointRef | None = Field(
        default=None,
        description="Of a registered version: its job may be forgotten, it starts from it anyway.",
    )


class StepJobStopRequested(JobStopRequest):
    """A step's job must end, since its run does."""

    type: ClassVar[str] = "step.job.stop.requested"
    run_id: Identifier
    step: Identifier


class StepStudyRequested(StudyRequest):
    """A step's study; the studies service runs it as if it had been submitted."""

    type: ClassVar[str] = "step.study.requested"
    run_id: Identifier
    step: Identifier
    tries: Few = Field(ge=1)


class StepStudyStopRequested(StudyStopRequest):
    """A step's study must end, since its run does."""

    type: ClassVar[str] = "step.study.stop.requested"
    run_id: Identifier
    step: Identifier


class StepStudyEnded(Event):
    """A step's study has ended; `best` is its result."""

    type: ClassVar[str] = "pipeline.step.study.ended"
    run_id: Identifier
    step: Identifier
    study_id: Identifier
    best: BestTrial | None = None


class StepOutputNoted(Event):
    """An output of a step's job is in the store."""

    type: ClassVar[str] = "pipeline.step.output.noted"
    run_id: Identifier
    step: Identifier
    job_id: Identifier
    name: OutputName
    artifact: Artifact
    attempt: Few = Field(default=0, description="Of the job, that wrote it; 0: not known.")


class StepSaveNoted(Event):
    """A step's job has a committed checkpoint; a later step starts from its newest one."""

    type: ClassVar[str] = "pipeline.step.save.noted"
    run_id: Identifier
    step: Identifier
    job_id: Identifier
    saved_step: Step
    commit_key: ObjectKey | None = None


class StepFailureNoted(Event):
    """Why a gang of a step's job failed."""

    type: ClassVar[str] = "pipeline.step.failure.noted"
    run_id: Identifier
    step: Identifier
    job_id: Identifier
    cause: FailureCause


class StepCharged(Event):
    """A gang of a step's job gave its GPUs back."""

    type: ClassVar[str] = "pipeline.step.charged"
    run_id: Identifier
    step: Identifier
    job_id: Identifier
    attempt: Few
    gpu_seconds: Amount


class StepJobEnded(Event):
    """A step's job has ended. The step ends once its outputs, or the cause, are known."""

    type: ClassVar[str] = "pipeline.step.job.ended"
    run_id: Identifier
    step: Identifier
    job_id: Identifier
    succeeded: bool
    reason: Message = ""
    attempt: Few = Field(
        default=0, description="The last one, whose outputs count; 0: not known, each counts."
    )


class StepDeferred(Event):
    """A step's job failed; it is tried again then."""

    type: ClassVar[str] = "pipeline.step.deferred"
    run_id: Identifier
    step: Identifier
    tries: Few = Field(ge=1, le=MAX_RETRIES * 1000)
    reason: Message
    next_at: Timestamp


class StepEnded(Event):
    """A step ended, for good unless its run is retried."""

    type: ClassVar[str] = "pipeline.step.ended"
    run_id: Identifier
    step: Identifier
    result: StepResult
    reason: Message = ""
    outputs: Outputs = Field(default_factory=dict)


class AliasNoted(Event):
    """A step that starts from this alias starts from this checkpoint from here on."""

    type: ClassVar[str] = "pipeline.alias.noted"
    team: Identifier
    model: ModelName
    alias: AliasName
    protected: bool = Field(default=True, description="false: no gate protects it any more.")
    version: MaybeVersion = Field(default=0, description="0: it points to no version.")
    checkpoint: CheckpointOf | None = Field(
        default=None, description="Of the version; null: it is made of files."
    )


class SweepBegun(Event):
    """Outputs of a team that nothing needs are deleted: no step of the team runs meanwhile."""

    type: ClassVar[str] = "pipeline.sweep.begun"
    team: Identifier
    number: Few = Field(ge=1, description="Of the team's sweeps; counts up.")
    keys: tuple[DigestHex, ...] = Field(
        default=(), max_length=MOST_SWEPT, description="Of the cache, which forgets them."
    )
    runs: tuple[Identifier, ...] = Field(
        default=(), max_length=MOST_SWEPT, description="Their outputs are not retained any more."
    )


class SweepEnded(Event):
    """The sweep of a team is over."""

    type: ClassVar[str] = "pipeline.sweep.ended"
    team: Identifier
    number: Few = Field(ge=1)
    artifacts: Count = 0
    objects: Count = 0
    size_bytes: Bytes = 0
    problem: Message = Field(default="", description="Why it ended early; the next one continues.")
