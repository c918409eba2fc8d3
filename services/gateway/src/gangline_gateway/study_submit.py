"""Submits studies: publishes the request once per idempotency key and waits for the decision."""

from __future__ import annotations

from gangline_gateway.admission import DRY_RUN_SUFFIX, quota_notes
from gangline_gateway.app_context import AppContext, may_change
from gangline_gateway.problems import conflict, unavailable
from gangline_gateway.studies_state import studies_of
from gangline_schemas import job_ids
from gangline_schemas.api.studies import StudyPlan
from gangline_schemas.events.automation import StudySubmitted
from gangline_schemas.study_file import STUDY_ID_CHARS, StudySpec
from gangline_schemas.study_job import example_job
from gangline_schemas.study_space import grid_points
from gangline_service.tokens import Principal
from gangline_studies.core.values import sampler_of


async def submit_study(
    app: AppContext, caller: Principal, spec: StudySpec, key: str | None
) -> tuple[str, bool]:
    """The study's id, and whether this request created it. Raises 403, 409 and 503 problems."""
    may_change(caller, spec.team)
    suffix = job_ids.new_suffix() if key is None else job_ids.suffix_of_key(spec.team, key)
    study_id = study_id_of(spec, suffix)
    async with app.submitting.hold(study_id):
        known = studies_of(app.tail.studies()).studies.get(study_id)
        if known is not None:
            if known.spec.encode() != spec.encode():  # 1, 1.0 and true are equal
                raise conflict(
                    "key-reused",
                    "this Idempotency-Key was used for a study with another body; use a new key",
                )
            return study_id, False
        event = StudySubmitted(study_id=study_id, spec=spec, user=caller.name)
        await app.request(study_id, event)
        if study_id not in studies_of(app.tail.studies()).studies:
            raise unavailable(
                "undecided",
                "the studies service has not answered yet; the study is on the bus and will "
                "begin: repeat the request with the same Idempotency-Key to see it",
            )
    return study_id, True


def plan(app: AppContext, caller: Principal, spec: StudySpec) -> StudyPlan:
    """The trials it would run, and quota's view of its jobs. Raises 403 and 503 problems."""
    may_change(caller, spec.team)
    study_id = study_id_of(spec, DRY_RUN_SUFFIX)
    job = example_job(spec, study_id)
    notes, rejected = quota_notes(app, job)
    points = grid_points(spec.space)
    return StudyPlan(
        study_id=study_id,
        trials=most_trials(spec),
        points=points if points < 1e15 else None,
        job=job,
        notes=notes,
        rejected=rejected,
        spec=spec,
    )


def most_trials(spec: StudySpec) -> int:
    """The most trials that a study runs: a grid ends with its last point."""
    most = spec.limits.trials
    if sampler_of(spec) != "grid":
        return most
    return int(min(most, len(spec.start) + grid_points(spec.space)))


def study_id_of(spec: StudySpec, suffix: str) -> str:
    """A valid id: the study's name, cut, and the suffix."""
    return f"{spec.name[: STUDY_ID_CHARS - 1 - len(suffix)].rstrip('-')}-{suffix}"
