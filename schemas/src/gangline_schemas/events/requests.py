"""gangline.requests: what users and other systems ask of jobs. Submitters write here."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, StringConstraints

from gangline_schemas.base import Event, Identifier
from gangline_schemas.job import JobSpec
from gangline_schemas.limits import Attempt, Name, Priority, Step, User

TAGS_PER_REQUEST = 100
TagValue = Annotated[str, StringConstraints(max_length=5000)]
Tags = Annotated[dict[Name, TagValue | None], Field(min_length=1, max_length=TAGS_PER_REQUEST)]
"""By name; None removes a tag."""


class JobRequest(Event):
    """The base of all requests to run a job. Quota admits all of them alike.

    The same `job_id` again with the same spec is the same request.
    """

    job_id: Identifier
    spec: JobSpec
    user: User = "unknown"


class JobStopRequest(Event):
    """The base of all requests to end a job: its gang is asked to stop, then it is cancelled."""

    job_id: Identifier
    user: User = "unknown"


class JobSubmitted(JobRequest):
    """Run this job. The same `job_id` again is the same submission (idempotency)."""

    type: ClassVar[str] = "job.submitted"


class JobCancelRequested(JobStopRequest):
    """End this job: its gang is asked to stop, then it is cancelled."""

    type: ClassVar[str] = "job.cancel.requested"


class JobPriorityRequested(Event):
    """Change a job's priority."""

    type: ClassVar[str] = "job.priority.requested"
    job_id: Identifier
    priority: Priority
    user: User = "unknown"


class JobRestoreRequested(Event):
    """Start the job's next attempt from this step's committed checkpoint."""

    type: ClassVar[str] = "job.restore.requested"
    job_id: Identifier
    step: Step
    user: User = "unknown"


class CheckpointPinRequested(Event):
    """Pin this step's committed checkpoint: retain it until `pinned` false ends the pin."""

    type: ClassVar[str] = "checkpoint.pin.requested"
    job_id: Identifier
    step: Step
    pinned: bool = True
    user: User = "unknown"
    attempt: Attempt | None = Field(
        default=None, description="That saved it; null: the newest that saved the step."
    )


class RunTagged(Event):
    """Set tags of a run, also of one that ended. Nothing decides on it: the tracker keeps it."""

    type: ClassVar[str] = "run.tagged"
    job_id: Identifier
    team: Identifier = Field(description="The run's; tags of another team are ignored.")
    tags: Tags
    user: User = "unknown"
