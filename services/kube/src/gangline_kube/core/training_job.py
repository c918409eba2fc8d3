"""A TrainingJob object: the job that it asks for, and the status that shows this job.

Its `spec` has the fields of a job file without `name`, which is the object's own. The object's uid
is the idempotency key, so the job's id follows from the object alone. An object of the same name
that is created later has another uid, and is another job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import TypeAdapter, ValidationError

from gangline_kube.core.resource import GROUP, Object, annotation, part_of
from gangline_schemas import job_ids
from gangline_schemas.api.jobs import ENDED, REJECTED, JobSummary
from gangline_schemas.base import field_errors
from gangline_schemas.job import JobSpec

FINALIZER = f"{GROUP}/cancel"
"""Holds an object back until its job is cancelled."""
LEFT_OUT = frozenset({"name", "workdir", "trial", "code_diff_digest"})
"""Fields of a job that an object cannot have: they are its name, a client's, or a service's."""
TEAMS = "teams"
"""The annotation of a namespace that lists the teams for which its objects may ask."""
LOST = "unknown"
"""The state of an object whose job the gateway has forgotten; no job has it."""
_REASON_CHARS = 1024
_PRIORITY = JobSpec.model_fields["priority"]
_PRIORITIES: TypeAdapter[int] = TypeAdapter(Annotated[int, *_PRIORITY.metadata])


class RefusedError(Exception):
    """The object asks for no job that can be submitted; the message names the field."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The job that an object asks for."""

    spec: JobSpec
    key: str

    @property
    def job_id(self) -> str:
        """See job_id_of."""
        return job_id_of(self.spec.name, self.spec.team, self.key)


def wanted(name: str, uid: str, spec: Mapping[str, Any]) -> Wanted:
    """The job of an object. Raises RefusedError."""
    given = sorted(LEFT_OUT & spec.keys())
    if given:
        raise RefusedError(f"spec.{given[0]}: leave it out")
    try:
        job = JobSpec.model_validate({**spec, "name": name})
    except ValidationError as error:
        first = field_errors(error)[0]
        field = "metadata.name" if first.field == "name" else f"spec.{first.field}"
        raise RefusedError(f"{field}: {first.message}") from None
    return Wanted(job, uid)


def priority_of(spec: Mapping[str, Any]) -> int:
    """The priority of an object, whatever its other fields are. Raises RefusedError."""
    try:
        return _PRIORITIES.validate_python(spec.get("priority", _PRIORITY.default))
    except ValidationError as error:
        raise RefusedError(f"spec.priority: {field_errors(error)[0].message}") from None


def job_id_of(name: str, team: str, uid: str) -> str:
    """The id that the gateway gives an object's job, known before it is submitted.

    It depends on no field that can change. The id in the status is for people to read: those with
    all rights in a namespace can change it, and it must name no job of others.
    """
    return job_ids.job_id(name, job_ids.suffix_of_key(team, uid))


def job_id_of_object(item: Object) -> str:
    """The same, of an object as it is, or of its `shown_part`."""
    metadata = item["metadata"]
    return job_id_of(metadata["name"], str(item["spec"].get("team")), metadata["uid"])


def check_team(namespace: Object, team: str) -> None:
    """Raise RefusedError unless the namespace's annotation names the team."""
    listed = annotation(namespace, TEAMS) or ""
    if team in (each.strip() for each in listed.split(",")):
        return
    name = namespace["metadata"]["name"]
    raise RefusedError(
        f"spec.team: namespace {name} may not ask for team {team}; an administrator lists its "
        f"teams: kubectl annotate namespace {name} {GROUP}/{TEAMS}={team}"
    )


def shown_part(item: Object) -> Object:
    """The fields of an object that the mirror reads: its status, and what its job's id is of."""
    metadata = ("name", "namespace", "uid", "resourceVersion")
    found = part_of(item, metadata=metadata, spec=("team",))
    return found | {"status": item.get("status") or {}}


def ended(status: Mapping[str, Any]) -> bool:
    """Whether the object shows a job that has ended. Its status is never changed again."""
    return bool(status.get("ended"))


def refused_status(reason: str) -> Object:
    """The status of an object that leads to no job."""
    return {"state": REJECTED, "ended": True, "reason": reason[:_REASON_CHARS]}


def lost_status() -> Object:
    """The status of an object whose job the gateway does not know any more."""
    return {"state": LOST, "ended": True, "reason": "the gateway does not know this job any more"}


def status_of(job: JobSummary) -> Object:
    """The status that shows a job. Times are RFC 3339; a value that is not known is null."""
    started, over = job.started_at, job.ended_at
    return {
        "jobId": job.job_id,
        "state": job.state,
        "ended": job.state in ENDED,
        "reason": _reason(job)[:_REASON_CHARS],
        "attempt": job.attempt,
        "restarts": job.restarts,
        "gpus": job.gpus_allocated,
        "step": job.step,
        "totalSteps": job.total_steps,
        "startedAt": None if started is None else started.isoformat(),
        "endedAt": None if over is None else over.isoformat(),
    }


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> Object:
    """The merge patch that makes the status `old` show what `new` does; empty: it does."""
    if ended(old):
        return {}
    return {name: value for name, value in new.items() if old.get(name) != value}


def _reason(job: JobSummary) -> str:
    if job.waiting is not None:
        return job.waiting.message
    if job.failure is not None and job.state == "failed":
        return job.failure.message
    return job.reason
