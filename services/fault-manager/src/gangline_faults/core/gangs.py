"""Decisions about gangs: which attempt is live, why it failed, and that it fails only once."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime

from gangline_bus.decision import Decision
from gangline_faults.core import incidents
from gangline_faults.core.lemons import distrust
from gangline_faults.core.model import Blame, Failure, Gang, Health, JobHistory
from gangline_faults.core.policy.budget import Attempt, judge, used_after_commit
from gangline_faults.core.policy.classify import Rule, classify, describe
from gangline_faults.core.policy.last_words import death_signal
from gangline_faults.core.policy.left_out import in_words, leave_out
from gangline_faults.core.policy.limits import FaultLimits
from gangline_faults.core.policy.progress import Hang
from gangline_faults.core.policy.progress import describe as describe_hang
from gangline_faults.core.state import EARLY_EXITS, FaultState
from gangline_schemas.events.checkpoints import CheckpointCommitted
from gangline_schemas.events.faults import (
    ExitNoted,
    FailureCause,
    FailureClass,
    GangFailed,
    GangUnwatched,
    GangWatched,
    JobProgressed,
)
from gangline_schemas.events.scheduling import GangAllocated, GangReleased, JobStateChanged
from gangline_schemas.events.workers import WorkerExited

GangEvent = GangAllocated | GangReleased | JobStateChanged | WorkerExited | CheckpointCommitted


def decide_event(
    state: FaultState, event: GangEvent, at: datetime, now: datetime, limits: FaultLimits
) -> list[Decision]:
    """The decisions on an event about a gang or one of its ranks, written at `at`."""
    match event:
        case GangAllocated():
            return _watch(state, event, at, now, limits)
        case GangReleased():
            return _release(state, event)
        case JobStateChanged():
            if event.state.terminal:
                return _end_job(state, event, at)
            return incidents.note_running(state, event, at)
        case WorkerExited():
            return _exit_of_rank(state, event, now, limits)
        case CheckpointCommitted():
            return _note_commit(state, event, at, limits)


def _watch(
    state: FaultState, event: GangAllocated, at: datetime, now: datetime, limits: FaultLimits
) -> list[Decision]:
    """A new attempt is live; it fails at once if a node or rank of it is known to be gone."""
    job_id = event.job_id
    if job_id in state.ended or event.attempt <= state.attempts.get(job_id, 0):
        return []
    gang = Gang(
        event.attempt,
        tuple(node.node_id for node in event.nodes),
        tuple(node.incarnation for node in event.nodes),
        event.spec.restart,
        team=event.team,
        world_size=event.world_size,
        resume_step=None if event.resume is None else event.resume.step,
        since=at,
    )
    watched = GangWatched(
        job_id=job_id,
        attempt=event.attempt,
        nodes=gang.nodes,
        incarnations=gang.incarnations,
        restart=gang.restart,
        team=gang.team,
        world_size=gang.world_size,
        allocated_at=at,
        resume_step=gang.resume_step,
    )
    decisions = [Decision(job_id, watched)]
    lost = _lost_nodes(state, gang)
    if lost:
        failure = Failure(
            FailureCause.NODE,
            FailureClass.NODE,
            f"node {lost[0]} was lost before its ranks started",
            node_id=lost[0],
            avoid_nodes=_still_gone(state, lost),
        )
        return [*decisions, *failed(state, job_id, gang, failure, now, limits)]
    early = [noted.exited for noted in state.early.get((job_id, event.attempt), ())]
    return [*decisions, *_explain(state, job_id, gang, early, now, limits)]


def _release(state: FaultState, event: GangReleased) -> list[Decision]:
    """The attempt is over; its failure count stays until the job ends."""
    gang = state.gangs.get(event.job_id)
    if gang is None or gang.attempt != event.attempt:
        return []
    return [Decision(event.job_id, GangUnwatched(job_id=event.job_id, attempt=event.attempt))]


def _note_commit(
    state: FaultState, event: CheckpointCommitted, at: datetime, limits: FaultLimits
) -> list[Decision]:
    """The job made progress: it sets the cost of its next failure and may refill its restarts."""
    job_id, ref = event.job_id, event.checkpoint
    history = state.histories.get(job_id, JobHistory())
    known = -1 if history.committed_step is None else history.committed_step
    if ref.attempt > state.attempts.get(job_id, 0):
        return []
    if (ref.attempt, ref.step) <= (history.committed_attempt, known):
        return []
    progressed = JobProgressed(
        job_id=job_id,
        attempt=ref.attempt,
        step=ref.step,
        committed_at=at,
        restarts_used=used_after_commit(history, limits),
    )
    return [Decision(job_id, progressed)]


def _end_job(state: FaultState, event: JobStateChanged, at: datetime) -> list[Decision]:
    """The job is over; all that was remembered of it goes."""
    attempt = state.attempts.get(event.job_id)
    if attempt is None:
        return []
    ended = GangUnwatched(job_id=event.job_id, attempt=attempt, final=True)
    return [*incidents.close_at_end(state, event, at), Decision(event.job_id, ended)]


def _exit_of_rank(
    state: FaultState, exited: WorkerExited, now: datetime, limits: FaultLimits
) -> list[Decision]:
    """A rank is gone: nothing, a verdict, or a note that waits for the exit that explains it."""
    if classify(exited) is None or exited.job_id in state.ended:
        return []
    gang = state.gangs.get(exited.job_id)
    if gang is not None and gang.attempt == exited.attempt:
        return _explain(state, exited.job_id, gang, [exited], now, limits)
    if exited.attempt <= state.attempts.get(exited.job_id, 0):
        return []
    # Its gang.allocated is on another topic and was not read yet: keep it until it is.
    known = [noted.exited for noted in state.early.get((exited.job_id, exited.attempt), ())]
    if len(known) >= EARLY_EXITS or any(other.rank == exited.rank for other in known):
        return []
    return [Decision(exited.job_id, ExitNoted(exited=exited, noted_at=now))]


def fail_gangs_on(
    state: FaultState,
    gone: Mapping[tuple[str, str], str],
    now: datetime,
    limits: FaultLimits,
    *,
    avoid: bool,
    blame: bool = False,
) -> list[Decision]:
    """One gang.failed for each live gang with ranks on a gone (node, incarnation): message."""
    decisions: list[Decision] = []
    for job_id, gang in sorted(state.gangs.items()):
        here = [place for place in sorted(gone) if gang.runs_on(*place)]
        if not here or gang.failed:
            continue
        nodes = tuple(node_id for node_id, _ in here)
        failure = Failure(
            FailureCause.NODE,
            FailureClass.NODE,
            gone[here[0]],
            node_id=here[0][0],
            avoid_nodes=nodes if avoid else (),
            blamed_nodes=nodes if blame else (),
        )
        decisions += failed(state, job_id, gang, failure, now, limits)
    return decisions


def fail_settled(
    state: FaultState,
    now: datetime,
    settle_s: float,
    quiet: Collection[str],
    decided: Collection[str],
    limits: FaultLimits,
) -> list[Decision]:
    """Stop waiting for a better explanation. `quiet` nodes have sent no recent heartbeat.

    A node that fell silent just before its peers lost it is avoided, and named as the cause: it
    will not be declared failed before the timeout. `decided` jobs failed in this same Tick.
    """
    decisions: list[Decision] = []
    for job_id in sorted(state.settling):
        gang = state.gangs[job_id]
        noted = gang.noted
        if job_id in decided or noted is None:
            continue
        # abs: it may have been noted by a clock that was ahead and went back since.
        if abs((now - noted.noted_at).total_seconds()) < settle_s:
            continue
        rule = classify(noted.exited)
        if rule is None:  # cannot be: only failures are noted
            continue
        failure = _failure(rule, noted.exited)
        silent = tuple(node_id for node_id in sorted(set(gang.nodes)) if node_id in quiet)
        if silent and len(silent) < len(set(gang.nodes)):
            failure = Failure(
                FailureCause.NODE,
                FailureClass.NODE,
                f"{failure.message} (node {silent[0]} went silent)",
                node_id=silent[0],
                exited=noted.exited,
                avoid_nodes=silent,
                blamed_nodes=silent,
            )
        decisions += failed(state, job_id, gang, failure, now, limits)
    return decisions


def forget_early(state: FaultState, now: datetime, keep_s: float) -> list[Decision]:
    """Drop exits of attempts that never became known."""
    return [
        Decision(job_id, GangUnwatched(job_id=job_id, attempt=attempt))
        for (job_id, attempt) in sorted(state.early)
        if (now - state.early[job_id, attempt][0].noted_at).total_seconds() >= keep_s
    ]


def failed(
    state: FaultState,
    job_id: str,
    gang: Gang,
    failure: Failure,
    now: datetime,
    limits: FaultLimits,
) -> list[Decision]:
    """The one gang.failed of an attempt, and what it means for incidents."""
    exited, history = failure.exited, state.histories.get(job_id, JobHistory())
    last_step = incidents.last_step_of(
        state.liveness.gangs.get(job_id),
        gang.attempt,
        None if exited is None else exited.last_step,
    )
    ran_s = 0.0 if gang.since is None else (now - gang.since).total_seconds()
    verdict = judge(failure, gang.restart, history, Attempt(last_step, ran_s), limits)
    left_out = leave_out(failure, verdict)
    event = GangFailed(
        job_id=job_id,
        attempt=gang.attempt,
        cause=failure.cause,
        action=verdict.action,
        message=verdict.message + in_words(left_out),
        first_rank=None if exited is None else exited.rank,
        node_id=failure.node_id,
        exit_code=None if exited is None else exited.exit_code,
        signal=None if exited is None else death_signal(exited),
        avoid_nodes=failure.avoid_nodes,
        blamed_nodes=failure.blamed_nodes,
        restarts_used=verdict.restarts_used,
        restarts_max=gang.restart.max,
        failed_at=now,
        failure_class=failure.failure_class,
        review=failure.failure_class is FailureClass.DATA,
        team=gang.team,
        failures=history.failures + 1,
        restarts_idle=verdict.restarts_idle,
        world_size=gang.world_size,
        last_step=last_step,
        committed_step=history.committed_step,
        work_lost_s=_work_lost_s(state, job_id, gang, last_step, now),
        left_out=left_out,
    )
    decisions = [*incidents.close_at_failure(state, job_id, last_step, now)]
    decisions.append(Decision(job_id, event))
    if event.action == "fail":
        decisions.append(incidents.close_failed(event))
    blame = Blame(job_id, failure.failure_class, now)
    return [*decisions, *distrust(state, failure.blamed_nodes, blame, limits)]


def _work_lost_s(
    state: FaultState, job_id: str, gang: Gang, last_step: int | None, now: datetime
) -> float:
    """How long the attempt had trained since its last checkpoint, or since it began."""
    since = incidents.works_since(state.incidents.get(job_id), gang, last_step)
    history = state.histories.get(job_id)
    if since is not None and history is not None and history.committed_attempt == gang.attempt:
        since = max(since, history.committed_at or since)
    return 0.0 if since is None else max(0.0, (now - since).total_seconds())


def hung(hang: Hang) -> Failure:
    """No rank makes progress. The node is not avoided: hangs are mostly of programs."""
    return Failure(FailureCause.HANG, FailureClass.HANG, describe_hang(hang), node_id=hang.node_id)


def _explain(
    state: FaultState,
    job_id: str,
    gang: Gang,
    exits: list[WorkerExited],
    now: datetime,
    limits: FaultLimits,
) -> list[Decision]:
    if gang.failed:
        return []
    rules = [(rule, exited) for exited in exits if (rule := classify(exited)) is not None]
    for rule, exited in rules:
        if not rule.collateral:
            return failed(state, job_id, gang, _failure(rule, exited), now, limits)
    if rules and gang.noted is None:  # the first of those taken along stands for all
        return [Decision(job_id, ExitNoted(exited=rules[0][1], noted_at=now))]
    return []


def _failure(rule: Rule, exited: WorkerExited) -> Failure:
    return Failure(
        rule.cause,
        rule.failure_class,
        describe(rule, exited),
        node_id=exited.node_id,
        exited=exited,
        avoid_nodes=(exited.node_id,) if rule.avoid_node else (),
        blamed_nodes=(exited.node_id,) if rule.avoid_node else (),
    )


def _lost_nodes(state: FaultState, gang: Gang) -> list[str]:
    """Nodes of the gang whose incarnation there is known to be gone."""
    lost = []
    for node_id, incarnation in zip(gang.nodes, gang.incarnations, strict=True):
        node = state.nodes.get(node_id)
        if node is None:
            continue
        gone = node.incarnation == incarnation and not node.health.live
        if gone or incarnation in node.past:
            lost.append(node_id)
    return lost


def _still_gone(state: FaultState, lost: list[str]) -> tuple[str, ...]:
    down = {Health.FAILED, Health.LEFT}
    return tuple(node_id for node_id in lost if state.nodes[node_id].health in down)
