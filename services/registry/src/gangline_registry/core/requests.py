"""Requests of users: each is answered once, by the event that it leads to or a refusal."""

from __future__ import annotations

from typing import Any

from gangline_registry.core import promoting
from gangline_registry.core.lookup import Refusal, promoted, version_of
from gangline_registry.core.model import model_key, version_key
from gangline_registry.core.state import RegistryPlan, versions_of
from gangline_schemas.envelope import Envelope, request_key
from gangline_schemas.events.model_requests import (
    ApprovalRequested,
    EvaluationRequested,
    GateRemovalRequested,
    GateRequested,
    ModelPromotionRequested,
    ModelRequest,
    RollbackRequested,
    ServingRequested,
    SnapshotProfiled,
    VersionRequested,
)
from gangline_schemas.events.registry import (
    EvaluationReported,
    GateRemoved,
    GateSet,
    ProfileNoted,
    RegistryRefused,
    ServingReported,
    VersionApproved,
    VersionBegun,
    VersionRegistered,
)
from gangline_schemas.gate_file import Gate
from gangline_schemas.memory import REMEMBERED
from gangline_schemas.mlflow_registry import MOST_ALIASES
from gangline_schemas.models import MAX_SUITES, VALIDATED_ITSELF, CheckpointOf

MODELS_OF_TEAM = 1000
REGISTRATIONS_OPEN = 100
"""Of one team, while MLflow is away."""


def take(plan: RegistryPlan, envelope: Envelope) -> None:
    """Answer a request; one that was answered leads to nothing."""
    event = envelope.data
    if not isinstance(event, ModelRequest | GateRequested | SnapshotProfiled):
        return
    if request_key(envelope.source, envelope.id) in plan.state.requests:
        return
    ref = {"request_id": envelope.id, "request_source": envelope.source}
    team = event.config.team if isinstance(event, GateRequested) else event.team
    try:
        _take(plan, event, ref)
    except Refusal as error:
        plan.add(team, RegistryRefused(team=team, reason=str(error), user=event.user, **ref))


def _take(plan: RegistryPlan, event: Any, ref: dict[str, str]) -> None:
    match event:
        case GateRequested(config=gate, user=user):
            _check_gate(plan, gate)
            plan.add(gate.model, GateSet(config=gate, digest=gate.digest, user=user, **ref))
            promoting.settle(plan, gate.team, gate.model)
        case GateRemovalRequested(team=team, model=model, user=user):
            if model_key(team, model) not in plan.state.models:
                raise Refusal(f"model {model} has no gate")
            plan.add(model, GateRemoved(team=team, model=model, user=user, **ref))
            promoting.settle(plan, team, model)
        case ModelPromotionRequested():
            promoting.begin(plan, event, ref)
        case RollbackRequested():
            promoting.roll_back(plan, event, ref)
        case SnapshotProfiled():
            noted = ProfileNoted(
                team=event.team, snapshot=event.snapshot, profile=event.profile,
                user=event.user, **ref,
            )  # fmt: skip
            plan.add(event.team, noted)
        case _:
            _take_version(plan, event, ref)


def _take_version(plan: RegistryPlan, event: Any, ref: dict[str, str]) -> None:
    match event:
        case VersionRequested():
            _register(plan, event, ref)
        case EvaluationRequested():
            one = version_of(plan, event.team, event.model, event.version)
            if event.suite not in one.evaluations and len(one.evaluations) >= MAX_SUITES:
                raise Refusal(f"a version has at most {MAX_SUITES} suites")
            fields = {"suite": event.suite, "evaluation": event.evaluation}
            plan.add(event.model, EvaluationReported(**_of(event), **fields, **ref))
        case ServingRequested(serving=serving):
            version_of(plan, event.team, event.model, event.version)
            plan.add(event.model, ServingReported(**_of(event), serving=serving, **ref))
        case ApprovalRequested(comment=comment):
            _check_approval(plan, event)
            plan.add(event.model, VersionApproved(**_of(event), comment=comment, **ref))


def _of(event: EvaluationRequested | ServingRequested | ApprovalRequested) -> dict[str, Any]:
    return {
        "team": event.team, "model": event.model, "version": event.version, "user": event.user
    }  # fmt: skip


def _check_gate(plan: RegistryPlan, gate: Gate) -> None:
    state = plan.state
    own = sum(name.startswith(f"{gate.team}/") for name in state.models)
    if model_key(gate.team, gate.model) not in state.models and own >= MODELS_OF_TEAM:
        raise Refusal(f"team {gate.team} has gates of {MODELS_OF_TEAM} models; remove some first")
    held = state.models.get(model_key(gate.team, gate.model))
    others = len(state.aliases) - (len(held.gate.aliases) if held is not None else 0)
    if others + len(gate.aliases) > MOST_ALIASES:
        raise Refusal(
            f"gates of all teams protect {len(state.aliases):,} aliases already, of "
            f"{MOST_ALIASES:,}; remove some first"
        )
    if gate.baseline != "current":
        version_of(plan, gate.team, gate.model, gate.baseline)


def _register(plan: RegistryPlan, event: VersionRequested, ref: dict[str, str]) -> None:
    state = plan.state
    checkpoint, version = None, event.version
    if event.job_id is not None:
        checkpoint = _promoted(plan, event.job_id, event.step)
        version = next(
            (
                one.version
                for one in reversed(versions_of(state, event.team, event.model))
                if one.checkpoint is not None and one.checkpoint.place == checkpoint.place
            ),
            None,
        )
    if sum(one.team == event.team for one in state.registrations.values()) >= REGISTRATIONS_OPEN:
        raise Refusal(f"{REGISTRATIONS_OPEN} versions of team {event.team} wait for MLflow already")
    number = state.numbers.get("registration", 0) + 1
    begun = VersionBegun(
        team=event.team, model=event.model, registration=number, checkpoint=checkpoint,
        version=version, snapshot=event.snapshot, description=event.description,
        user=event.user, **ref,
    )  # fmt: skip
    plan.add(event.model, begun)
    if checkpoint is None and _is_known(plan, event, version):
        made = VersionRegistered(
            team=event.team, model=event.model, registration=number, version=version
        )
        plan.add(event.model, made)


def _is_known(plan: RegistryPlan, event: VersionRequested, version: int | None) -> bool:
    return version is not None and (
        version_key(event.team, event.model, version) in plan.state.versions
    )


def _promoted(plan: RegistryPlan, job_id: str, step: int | None) -> CheckpointOf:
    """The promoted checkpoint of a step, or the newest. Raises Refusal."""
    found = promoted(plan.state, job_id, step)
    if found is None:
        which = f"checkpoint of step {step}" if step is not None else "checkpoint"
        since = f"in the last {REMEMBERED.days} days"
        raise Refusal(
            f"job {job_id} has no {which} that {VALIDATED_ITSELF} {since}: "
            "only these can be registered; set checkpoint.promote in its job file"
        )
    return found


def _check_approval(plan: RegistryPlan, event: ApprovalRequested) -> None:
    version_of(plan, event.team, event.model, event.version)
    gated = plan.state.models.get(model_key(event.team, event.model))
    if gated is not None and gated.gate.approvers and event.user not in gated.gate.approvers:
        raise Refusal(f"the gate accepts approvals of {', '.join(gated.gate.approvers)} only")
