"""gangline.studies: studies, their trials and the jobs of these. Written by the studies service."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from gangline_schemas.base import Event, Identifier, Model, Timestamp
from gangline_schemas.events.requests import JobRequest, JobStopRequest
from gangline_schemas.events.trials import TRIAL_METRICS
from gangline_schemas.job import JobState
from gangline_schemas.limits import (
    INT64_MAX,
    Amount,
    Attempt,
    Bytes,
    Few,
    GangSize,
    Message,
    MetricName,
    MetricValue,
    Name,
    RequestCeId,
    RequestCeSource,
    Step,
    User,
)
from gangline_schemas.study_file import MAX_TRIALS, StudyId, StudySpec
from gangline_schemas.study_space import Parameters

TrialNumber = Annotated[int, Field(ge=0, le=1000 * MAX_TRIALS)]
"""Of a trial in its study, from 0; withdrawn trials have numbers too."""
Part = Annotated[int, Field(ge=1, le=1000)]
"""Of a trial's jobs: 1 is the first, later ones continue from its checkpoint."""
Values = Annotated[dict[MetricName, MetricValue | None], Field(max_length=TRIAL_METRICS)]
"""By metric; null: it was not finite."""


class EndReason(StrEnum):
    """Why a study ended."""

    TRIALS = "trials"  # all trials that its limits allow have ended
    EXHAUSTED = "exhausted"  # each point of its grid has been tried
    GPU_HOURS = "gpu_hours"
    FAILED = "failed"  # more trials failed than its limits allow, or quota rejected a job
    DEADLINE = "deadline"
    STOPPED = "stopped"  # a user asked for it
    SAMPLER = "sampler"  # no suggestion could be made


class PruneReason(StrEnum):
    """Why a trial ended before its program did."""

    RUNG = "rung"  # others were better at this rung
    MEDIAN = "median"  # the median of others was better at this step
    REPLACED = "replaced"  # population-based training continues from a better member
    NOT_FINITE = "not_finite"  # an objective was NaN or infinite
    ENDED = "ended"  # its study ended


class TrialFailure(StrEnum):
    """Why a trial has no result."""

    FAILED = "failed"  # its program ended with an error, or its restarts were used up
    OUT_OF_MEMORY = "out_of_memory"  # for the sampler a constraint is violated
    NO_RESULT = "no_result"  # its program ended well and reported no objective
    REJECTED = "rejected"  # quota rejected its job
    CANCELLED = "cancelled"  # a user cancelled its job


class StudyCreated(Event):
    """The study runs: trials are proposed as its limits allow."""

    type: ClassVar[str] = "study.created"
    study_id: StudyId
    spec: StudySpec
    user: User
    seed: int = Field(ge=0, le=INT64_MAX, description="Of all suggestions.")
    created_at: Timestamp
    size_bytes: Bytes = Field(default=0, description="Of the spec as JSON.")
    request_id: RequestCeId = ""
    request_source: RequestCeSource = ""


class StudyRefused(Event):
    """A request about a study that cannot be done, and why."""

    type: ClassVar[str] = "study.refused"
    study_id: StudyId
    request: Name = Field(description="The type of the refused request.")
    reason: Message
    user: User = "unknown"
    request_id: RequestCeId = ""
    request_source: RequestCeSource = ""


class StudyEnding(Event):
    """No further trial is proposed, and jobs that run are stopped."""

    type: ClassVar[str] = "study.ending"
    study_id: StudyId
    reason: EndReason
    message: Message = ""
    user: User = ""
    request_id: RequestCeId = ""
    request_source: RequestCeSource = ""


class BestTrial(Model):
    """The best completed trial by the first objective."""

    number: TrialNumber
    parameters: Parameters
    value: MetricValue
    job_id: Identifier = Field(description="Its last job.")


class StudyEnded(Event):
    """All trials of the study have ended, and their jobs too."""

    type: ClassVar[str] = "study.ended"
    study_id: StudyId
    reason: EndReason
    best: BestTrial | None = None


class _OfTrial(Event):
    study_id: StudyId
    number: TrialNumber


class TrialProposed(_OfTrial):
    """A trial with all of its parameters, which never change. Replay never asks the sampler."""

    type: ClassVar[str] = "trial.proposed"
    parameters: Parameters
    by: Name = Field(description="tpe, random, grid, cmaes, start (a start point) or pbt.")
    results: Few = Field(default=0, description="So many results the sampler knew.")
    bracket: Few = Field(default=0, description="Of hyperband: 0 has the most rungs.")
    parent: TrialNumber | None = Field(
        default=None, description="It continues from the checkpoint of this trial (pbt)."
    )


class TrialWithdrawn(_OfTrial):
    """It waited for GPUs while results came: a new one is proposed that knows them."""

    type: ClassVar[str] = "trial.withdrawn"


class TrialJobRequested(JobRequest):
    """A job runs the trial, or its next part; quota admits it as if it had been submitted."""

    type: ClassVar[str] = "trial.job.requested"
    study_id: StudyId
    number: TrialNumber
    part: Part = 1
    waits_since: Timestamp | None = Field(
        default=None,
        description="When the trial was proposed in whose place this one is: its age in the queue.",
    )


class TrialJobStopRequested(JobStopRequest):
    """The trial's job is not needed any more: quota admits it like a user's cancel request."""

    type: ClassVar[str] = "trial.job.stop.requested"
    study_id: StudyId
    number: TrialNumber


class _OfTrialJob(_OfTrial):
    part: Part


class TrialJobEnded(_OfTrialJob):
    """The job of this part has ended for ever. Restarts of the job are no end."""

    type: ClassVar[str] = "trial.job.ended"
    state: JobState | Literal["rejected"]
    message: Message = ""


class TrialExited(_OfTrialJob):
    """Rank 0 of this attempt has ended: it reports nothing any more."""

    type: ClassVar[str] = "trial.exited"
    attempt: Attempt


class TrialLogsRead(_OfTrialJob):
    """All that the programs of this job logged to MLflow is measured."""

    type: ClassVar[str] = "trial.logs.read"


class TrialStarted(_OfTrialJob):
    """The job of this part has its GPUs: the trial does not wait any more."""

    type: ClassVar[str] = "trial.started"
    attempt: Attempt
    gpus: GangSize
    allocated_at: Timestamp


class TrialCharged(_OfTrialJob):
    """An attempt of the trial's job gave its GPUs back."""

    type: ClassVar[str] = "trial.charged"
    attempt: Attempt
    gpu_seconds: Amount


class TrialMeasured(_OfTrialJob):
    """The trial evaluated. Steps rise: what a restarted job reports again is not measured again."""

    type: ClassVar[str] = "trial.measured"
    step: Step
    values: Values
    rungs: tuple[Few, ...] = Field(
        default=(), max_length=64, description="That it reached here: this is its value there."
    )
    logged: bool = Field(default=False, description="To MLflow, not reported by rank 0.")


class TrialSaved(_OfTrialJob):
    """A checkpoint of the trial is committed, so that it can be continued from there."""

    type: ClassVar[str] = "trial.saved"
    attempt: Attempt
    step: Step


class TrialSaving(_OfTrialJob):
    """A checkpoint of the trial lies on its nodes' disks, and none of it is committed yet."""

    type: ClassVar[str] = "trial.saving"
    attempt: Attempt
    step: Step


class TrialSaveLost(_OfTrialJob):
    """The newest checkpoint of the trial is damaged or deleted, or will never be committed."""

    type: ClassVar[str] = "trial.save.lost"
    attempt: Attempt
    step: Step


class TrialPaused(_OfTrial):
    """It reached a rung and is not among the best there: its job ends, and it may be promoted."""

    type: ClassVar[str] = "trial.paused"
    step: Step
    rung: Few


class TrialPromoted(_OfTrial):
    """It is among the best of its rung by now: a new job continues from its checkpoint.

    If it has none, the job starts over.
    """

    type: ClassVar[str] = "trial.promoted"
    rung: Few
    part: Part = Field(description="Of its next job.")


class TrialCompleted(_OfTrial):
    """Its program ended well: this is its result."""

    type: ClassVar[str] = "trial.completed"
    step: Step
    values: Values


class TrialPruned(_OfTrial):
    """It ended before its program did."""

    type: ClassVar[str] = "trial.pruned"
    step: Step
    reason: PruneReason
    values: Values = Field(description="The last ones that it reported.")
    better: TrialNumber | None = Field(
        default=None, description="Of pbt: a new trial continues from this one."
    )


class TrialFailed(_OfTrial):
    """It has no result."""

    type: ClassVar[str] = "trial.failed"
    reason: TrialFailure
    message: Message = ""
