"""Submits jobs: publishes the request once per idempotency key and answers with the decision."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool

from gangline_gateway import gang_heartbeats, present
from gangline_gateway.admission import DRY_RUN_SUFFIX, quota_notes
from gangline_gateway.app_context import AppContext, may_change
from gangline_gateway.gang_price import price_of_gang
from gangline_gateway.history import HistoryRun
from gangline_gateway.images import image_notes
from gangline_gateway.live_model import JobDetails, LiveJob
from gangline_gateway.live_view import LiveView
from gangline_gateway.problems import ProblemError, conflict
from gangline_schemas import job_ids
from gangline_schemas.api.jobs import REJECTED, DryRun, Job
from gangline_schemas.base import FieldError
from gangline_schemas.events.requests import JobSubmitted
from gangline_schemas.job import JobSpec
from gangline_service.tokens import Principal


@dataclass(frozen=True, slots=True)
class Submitted:
    """The job, and whether this request created it; a `HistoryRun` if only history has it."""

    job_id: str
    found: JobDetails | HistoryRun
    created: bool

    @property
    def state(self) -> str:
        """The job's state now."""
        return self.found.job.state if isinstance(self.found, JobDetails) else self.found.run.state

    def answer(self, app: AppContext) -> Job:
        """The job as a REST answer."""
        if isinstance(self.found, JobDetails):
            return full(app, self.found)
        return present.history_job(self.found)


def full(app: AppContext, found: JobDetails) -> Job:
    """A job with its GPU utilization, rank activity and price."""
    now = app.clock()
    job = present.job(found, now, gang_heartbeats.of_gang(app.tail.view(), found, now))
    price = price_of_gang(found.gang, app.prices)
    return job if price is None else job.model_copy(update={"price_per_hour": price})


async def submit(app: AppContext, caller: Principal, spec: JobSpec, key: str | None) -> Submitted:
    """Publishes the job and waits for quota's decision.

    If the decision does not come in time, the job is returned as pending: it is safe on the bus.
    Raises problems: 403, 409 (the key was used for another job), 422 (rejected), 503.
    """
    _check(caller, spec)
    suffix = job_ids.new_suffix() if key is None else job_ids.suffix_of_key(spec.team, key)
    async with app.submitting.hold(suffix):
        known = app.tail.query(lambda live: live.by_suffix(suffix, spec.team))
        if known is not None:
            return Submitted(known.job_id, _same(app, known, spec), created=False)
        job_id = job_ids.job_id(spec.name, suffix)
        event = JobSubmitted(job_id=job_id, spec=spec, user=caller.name)
        await app.publisher.publish(job_id, event)
        try:
            found = await app.tail.until(lambda live: _decided(live, job_id), app.answer_wait_s)
        except ProblemError:
            past = await run_in_threadpool(_ended_before, app, spec, job_id)
            if past is None:
                raise
            return Submitted(job_id, past, created=False)
    if found is None:
        found = app.tail.query(lambda live: live.details(job_id)) or _unseen(app, event)
    _raise_if_rejected(found.job)
    return Submitted(job_id, found, created=True)


def dry_run(app: AppContext, caller: Principal, spec: JobSpec) -> DryRun:
    """Quota's decision about a job, without submitting it. Raises 403 and 503 problems."""
    _check(caller, spec)
    notes, rejected = quota_notes(app, spec)
    notes += image_notes(app, spec)
    return DryRun(
        job_id=job_ids.job_id(spec.name, DRY_RUN_SUFFIX),
        gpus=spec.resources.gpus,
        notes=notes,
        rejected=rejected,
        spec=spec,
    )


def _check(caller: Principal, spec: JobSpec) -> None:
    may_change(caller, spec.team)
    if spec.trial is not None:
        wrong = FieldError(field="trial", message="is set by studies alone; leave it out")
        raise ProblemError(422, "invalid", f"trial: {wrong.message}", errors=(wrong,))


def _decided(live: LiveView, job_id: str) -> JobDetails | None:
    refused = live.outcomes.get(f"{JobSubmitted.type}/{job_id}")
    if refused is not None:
        raise conflict("id-taken", refused.refused or "the job id is taken")
    found = live.details(job_id)
    if found is None or not (found.job.admitted or found.job.state == REJECTED):
        return None
    return found


def _ended_before(app: AppContext, spec: JobSpec, job_id: str) -> HistoryRun | None:
    """The same job, which ended so long ago that only history has it; None if it does not."""
    try:
        row = app.history.query(lambda queries: queries.history.run(job_id, frozenset({spec.team})))
        same = row is not None and JobSpec.decode(row.spec).digest() == spec.digest()
    except (ProblemError, ValidationError):  # a rejected job's row has no spec
        return None
    return row if same else None


def _same(app: AppContext, known: LiveJob, spec: JobSpec) -> JobDetails:
    if known.digest != spec.digest():
        raise conflict(
            "key-reused",
            "this Idempotency-Key was used for a job with another body; use a new key",
        )
    _raise_if_rejected(known)
    return app.tail.query(lambda live: live.details(known.job_id)) or JobDetails(known)


def _raise_if_rejected(job: LiveJob) -> None:
    if job.state == REJECTED:
        raise ProblemError(422, "rejected", job.reason, errors=job.errors)


def _unseen(app: AppContext, event: JobSubmitted) -> JobDetails:
    """The job as submitted, while the tail has not read it yet."""
    return JobDetails(
        LiveJob(
            job_id=event.job_id,
            team=event.spec.team,
            name=event.spec.name,
            user=event.user,
            state="pending",
            submitted_at=app.clock(),
            spec=event.spec.without_diff(),
            priority=event.spec.priority,
            gpus=event.spec.resources.gpus,
            reason="waits for admission",
        )
    )
