"""Requests of users: studies are created or refused, and stopped."""

from __future__ import annotations

import hashlib

from gangline_schemas.envelope import Envelope, request_key
from gangline_schemas.events.automation import StudyRequest, StudyStopRequest
from gangline_schemas.events.studies import EndReason, StudyCreated, StudyEnding, StudyRefused
from gangline_studies.core.state import StudyPlan

MOST_ACTIVE, ACTIVE_OF_TEAM = 1000, 100
"""So many studies can be active at the same time, and of one team."""
MOST_BYTES = 512 << 10
"""Of a study's file as JSON, with all defaults."""


def take(plan: StudyPlan, envelope: Envelope) -> str | None:
    """Decide a request once; the study that it changed."""
    ref = {"request_id": envelope.id, "request_source": envelope.source}
    if request_key(envelope.source, envelope.id) in plan.state.requests:
        return None
    event = envelope.data
    if isinstance(event, StudyStopRequest):
        return _stop(plan, event, ref)
    if isinstance(event, StudyRequest):
        return _create(plan, event, ref)
    return None


def _create(plan: StudyPlan, event: StudyRequest, ref: dict[str, str]) -> str | None:
    known = plan.state.studies.get(event.study_id)
    encoded, reason = event.spec.encode(), None  # 1, 1.0 and true are equal
    if known is not None and known.spec.encode() == encoded:
        return None
    size = len(encoded)
    if size > MOST_BYTES:
        reason = f"the file has {size:,} bytes with all defaults; at most {MOST_BYTES:,}"
    elif known is not None:
        reason = f"study id '{event.study_id}' is taken by another study; choose another id"
    elif _active_of(plan, event.spec.team) >= ACTIVE_OF_TEAM:
        reason = (
            f"{ACTIVE_OF_TEAM} studies of team {event.spec.team} are active: "
            "submit it again when some have ended"
        )
    elif len(plan.state.active) >= MOST_ACTIVE:
        reason = f"{MOST_ACTIVE:,} studies are active: submit it again when some have ended"
    if reason is not None:
        _refuse(plan, event, reason, ref)
        return None
    spec = event.spec
    seed = spec.seed if spec.seed is not None else seed_of(event.study_id)
    created = StudyCreated(
        study_id=event.study_id,
        spec=spec,
        user=event.user,
        seed=seed,
        created_at=plan.now,
        size_bytes=size,
        **ref,
    )
    plan.add(event.study_id, created)
    return event.study_id


def _active_of(plan: StudyPlan, team: str) -> int:
    return sum(plan.state.studies[study_id].spec.team == team for study_id in plan.state.active)


def _stop(plan: StudyPlan, event: StudyStopRequest, ref: dict[str, str]) -> str | None:
    known = plan.state.studies.get(event.study_id)
    if known is None or known.ended_at is not None:
        ended = f"has already ended: {known.ending}" if known is not None else "is not known"
        _refuse(plan, event, f"study '{event.study_id}' {ended}", ref)
        return None
    if known.ending is EndReason.STOPPED:
        return None
    ending = StudyEnding(
        study_id=event.study_id,
        reason=EndReason.STOPPED,
        message=f"stopped by {event.user}",
        user=event.user,
        **ref,
    )
    plan.add(event.study_id, ending)
    return event.study_id


def _refuse(
    plan: StudyPlan, event: StudyRequest | StudyStopRequest, reason: str, ref: dict[str, str]
) -> None:
    refused = StudyRefused(
        study_id=event.study_id, request=event.type, reason=reason, user=event.user, **ref
    )
    plan.add(event.study_id, refused)


def seed_of(study_id: str) -> int:
    """The seed of a study that names none: the same for the same id."""
    return int.from_bytes(hashlib.sha256(study_id.encode()).digest()[:4], "big")
