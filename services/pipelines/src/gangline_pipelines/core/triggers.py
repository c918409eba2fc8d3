"""The start of runs: a request, a snapshot, a time, drift. Each cause counts once.

A cause is an edge: the run's id is derived from the pipeline, the trigger and the subject. So the
same news, however often and late it comes, is the same run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import islice
from zoneinfo import ZoneInfo

from cronsim import CronSim

from gangline_pipelines.core.model import Pipeline, RunState
from gangline_pipelines.core.naming import pipeline_key, run_id
from gangline_pipelines.core.state import PipelinePlan, spec_key
from gangline_pipelines.core.stepping import advance, stop
from gangline_schemas.clocks import lasts
from gangline_schemas.events.model_requests import SnapshotProfiled
from gangline_schemas.events.pipeline_requests import SnapshotAnnounced
from gangline_schemas.events.pipelines import (
    PipelinePaused,
    RunCause,
    RunEnded,
    RunQueued,
    RunSkipped,
    RunStarted,
    TimesMissed,
    TriggerKind,
)
from gangline_schemas.events.registry import DriftFound
from gangline_schemas.pipeline_file import PipelineSpec, Trigger

MOST_MISSED = 1000
"""Missed times are counted up to here; with `all`, so many lead to runs."""
LATE = timedelta(minutes=5)
"""With `none`, a time that passed longer ago counts as missed."""
DAY = timedelta(days=1)
MOST_AT_ONCE = 500
"""Times of schedules that one Tick decides; the others wait for the next ones."""
MOST_LOOKED_AT = 5000
"""Times of schedules that one Tick looks at, those that were missed too: 20 us each."""
LIVE_STEPS_OF_TEAM = 10_000
"""Steps of a team's runs that have not ended: with more, no further run begins."""
MOST_DECISIONS = 2000
"""With so many decisions of one input, the steps of a further run wait for the next Tick."""


def on_snapshot(plan: PipelinePlan, event: SnapshotAnnounced | SnapshotProfiled) -> None:
    """Start the runs that wait for such a snapshot."""
    corpus = event.snapshot.partition("@")[0]
    for held, name, trigger in _triggers(plan, "snapshot"):
        if held.team == event.team and fnmatchcase(corpus, trigger.snapshot or ""):
            cause = RunCause(
                kind="snapshot", trigger=name, subject=event.snapshot, params=trigger.params
            )
            fire(plan, held, cause)


def on_drift(plan: PipelinePlan, event: DriftFound) -> None:
    """Start the runs that wait for drift of a model. The same finding counts once."""
    finding = f"{event.alias}:{event.version}:{event.snapshot}"
    for held, name, trigger in _triggers(plan, "drift"):
        if held.team == event.team and trigger.drift == event.model:
            cause = RunCause(kind="drift", trigger=name, subject=finding, params=trigger.params)
            fire(plan, held, cause)


def on_tick(plan: PipelinePlan) -> None:
    """Start the runs whose time has come, those that wait longest first.

    A time that passed while paused starts nothing.
    """
    _begin_late(plan)
    waiting = []
    for held, name, trigger in _triggers(plan, "schedule"):
        done = plan.state.times.get(f"{pipeline_key(held.team, held.name)}/{name}")
        if done is None or held.paused:
            continue
        if done > plan.now:
            done = _since_last_tick(plan)
        due_at = _next_time(trigger.schedule or "", trigger.zone, done)
        if due_at is not None and due_at <= plan.now:
            waiting.append((due_at, held, name, trigger, done))
    left, to_look_at = MOST_AT_ONCE, MOST_LOOKED_AT
    for _, held, name, trigger, done in sorted(waiting, key=lambda one: one[0]):
        if not left or to_look_at <= 0:
            return
        passed = [*islice(_times(trigger, done, plan.now), MOST_MISSED)]
        to_look_at -= len(passed)
        for due in _due(plan, held, name, trigger, passed)[:left]:
            left -= 1
            cause = RunCause(
                kind="schedule",
                trigger=name,
                subject=due.isoformat(),
                due_at=due,
                params=trigger.params,
            )
            current = plan.state.pipelines[pipeline_key(held.team, held.name)]
            fire(plan, current, cause)


def _since_last_tick(plan: PipelinePlan) -> datetime:
    """Up to when a schedule is done whose times were decided by a clock that was put back."""
    before = plan.soft.before
    return plan.now if before is None else min(before, plan.now)


def _begin_late(plan: PipelinePlan) -> None:
    """Decide about the steps of runs that began in an input with many decisions."""
    for name in [*plan.state.live]:
        run = plan.state.runs[name]
        begun = run.left < run.steps or run.ready or run.asked or run.jobs
        if not begun and run.state is RunState.RUNNING and len(plan.decisions) < MOST_DECISIONS:
            advance(plan, name)


def fire(plan: PipelinePlan, held: Pipeline, cause: RunCause) -> None:
    """Start, queue or skip the run of a trigger; nothing if its cause came before."""
    name = run_id(held.team, held.name, cause.trigger, cause.subject)
    known = plan.state.causes, plan.state.runs, plan.state.queued
    if any(name in one for one in known):
        return
    spec = plan.state.specs[spec_key(held.team, held.name, held.revision)]
    reason = _refused(plan, held, spec)
    if reason is not None:
        given = {"run_id": name, "team": held.team, "pipeline": held.name, "cause": cause}
        plan.add(name, RunSkipped(**given, user="", reason=reason))
    elif held.active:
        enqueue(plan, held, name, cause, user="")
    else:
        start(plan, held, name, cause, user="")


def enqueue(
    plan: PipelinePlan,
    held: Pipeline,
    name: str,
    cause: RunCause,
    user: str,
    ref: Mapping[str, str] | None = None,
) -> None:
    """Let a run wait for the active one; with overlap `cancel` it takes the place of all others."""
    spec = plan.state.specs[spec_key(held.team, held.name, held.revision)]
    if spec.overlap == "cancel":
        for other in held.queued:
            skip_queued(plan, other, f"{name} came after it")
    given = {"run_id": name, "team": held.team, "pipeline": held.name, "cause": cause}
    plan.add(name, RunQueued(**given, user=user, **(ref or {})))
    if spec.overlap == "cancel" and not plan.state.runs[held.active].result:
        stop(plan, held.active, "cancelled", f"{name} takes its place", user)


def start(
    plan: PipelinePlan,
    held: Pipeline,
    name: str,
    cause: RunCause,
    user: str,
    ref: Mapping[str, str] | None = None,
) -> None:
    """Begin a run."""
    started = RunStarted(
        run_id=name,
        team=held.team,
        pipeline=held.name,
        cause=cause,
        user=user,
        revision=held.revision,
        number=held.runs + 1,
        **(ref or {}),
    )
    plan.add(name, started)
    if len(plan.decisions) < MOST_DECISIONS:
        advance(plan, name)


def no_room(plan: PipelinePlan, held: Pipeline) -> str | None:
    """Why no further run of a team may begin; None if it may."""
    live = plan.state.live_steps.get(held.team, 0)
    if live < LIVE_STEPS_OF_TEAM:
        return None
    return f"runs of team {held.team} have {live:,} steps, of {LIVE_STEPS_OF_TEAM:,} at a time"


def after_ends(plan: PipelinePlan) -> None:
    """Let queued runs of pipelines begin whose run has ended; pause those that keep failing."""
    at = 0
    while at < len(plan.decisions):
        event = plan.decisions[at].event
        at += 1
        if isinstance(event, RunEnded):
            _after_end(plan, event)


def _after_end(plan: PipelinePlan, event: RunEnded) -> None:
    run = plan.state.runs.get(event.run_id)
    key = pipeline_key(run.team, run.pipeline) if run is not None else ""
    held = plan.state.pipelines.get(key)
    if held is None:
        return
    spec = plan.state.specs[spec_key(held.team, held.name, held.revision)]
    most = spec.pause_after_failures
    if most and event.failed_in_row >= most and not held.paused and event.result == "failed":
        reason = f"{event.failed_in_row} triggered runs failed in a row, the last {event.run_id}"
        plan.add(held.name, PipelinePaused(team=held.team, pipeline=held.name, reason=reason))
    while True:
        held = plan.state.pipelines[key]
        if held.active or not held.queued:
            return
        name = held.queued[0]
        queued = plan.state.queued[name]
        full = no_room(plan, held)
        if held.paused and queued.cause.kind != "manual":
            skip_queued(plan, name, f"the pipeline is paused: {held.paused}")
        elif full is not None:
            skip_queued(plan, name, full)
        else:
            start(plan, held, name, queued.cause, queued.user)


def skip_queued(
    plan: PipelinePlan,
    name: str,
    reason: str,
    user: str | None = None,
    ref: Mapping[str, str] | None = None,
) -> None:
    """Let a run that is queued never start. `user` asked for that; default: the user of the run."""
    queued = plan.state.queued[name]
    skipped = RunSkipped(
        run_id=name,
        team=queued.team,
        pipeline=queued.pipeline,
        cause=queued.cause,
        user=queued.user if user is None else user,
        reason=reason,
        **(ref or {}),
    )
    plan.add(name, skipped)


def _refused(plan: PipelinePlan, held: Pipeline, spec: PipelineSpec) -> str | None:
    """Why a triggered run does not start; None if it may."""
    if held.paused:
        return f"the pipeline is paused: {held.paused}"
    recent = [at for at in held.starts if lasts(at, plan.now, DAY)]
    waiting = sum(plan.state.queued[name].cause.kind != "manual" for name in held.queued)
    if len(recent) + waiting >= spec.limits.runs_per_day:
        return f"{len(recent)} runs began within a day, its limits.runs_per_day"
    cooldown = timedelta(minutes=spec.cooldown_minutes)
    if recent and lasts(recent[-1], plan.now, cooldown):
        return f"the last run began within its cooldown of {spec.cooldown_minutes:g} minutes"
    if held.active and spec.overlap == "skip":
        return f"{held.active} runs, and overlap is skip"
    if held.active and spec.overlap == "queue" and len(held.queued) >= spec.limits.queued:
        return f"{len(held.queued)} runs wait, its limits.queued"
    return None if held.active else no_room(plan, held)


def _triggers(plan: PipelinePlan, kind: TriggerKind) -> Iterator[tuple[Pipeline, str, Trigger]]:
    """The triggers of a kind, each with its pipeline as it is now."""
    for key in [*plan.state.pipelines]:
        first = plan.state.pipelines[key]
        spec = plan.state.specs[spec_key(first.team, first.name, first.revision)]
        for name, trigger in spec.triggers.items():
            if trigger.kind == kind:
                yield plan.state.pipelines[key], name, trigger


def _due(
    plan: PipelinePlan, held: Pipeline, name: str, trigger: Trigger, passed: list[datetime]
) -> list[datetime]:
    """The times of a schedule that start runs now, of those that passed; notes those missed."""
    if not passed:
        return []
    if trigger.catch_up == "all":
        return passed
    last = passed[-1]
    if len(passed) == MOST_MISSED:
        last = latest(trigger, plan.now)
    keeps = trigger.catch_up == "last" or plan.now - last <= LATE
    missed = [at for at in passed if at < last] if keeps else passed
    if missed:
        until = missed[-1] if keeps else last
        noted = TimesMissed(
            team=held.team, pipeline=held.name, trigger=name, until=until, count=len(missed)
        )
        plan.add(held.name, noted)
    return [last] if keeps else []


def _times(trigger: Trigger, after: datetime, until: datetime) -> Iterator[datetime]:
    """The times of a schedule after one time and up to another, in UTC."""
    for due in _following(trigger.schedule or "", trigger.zone, after):
        if due > until:
            return
        yield due


def _following(schedule: str, zone: str, after: datetime) -> Iterator[datetime]:
    """The times of a schedule after one time.

    In an hour that comes twice, CronSim begins with times before that one.
    """
    for at in CronSim(schedule, after.astimezone(ZoneInfo(zone))):
        due = at.astimezone(after.tzinfo)
        if due > after:
            yield due


def latest(trigger: Trigger, now: datetime) -> datetime:
    """The last time of a schedule up to now."""
    zone = ZoneInfo(trigger.zone)
    local = now.astimezone(zone) + timedelta(seconds=1)
    found = next(CronSim(trigger.schedule or "", local, reverse=True)).astimezone(now.tzinfo)
    # In an hour that comes twice, CronSim goes back from the first one.
    return max(_times(trigger, found, now), default=found)


def next_time(schedule: str, zone: str, after: datetime) -> datetime | None:
    """The next time of a schedule; None if there is none for years.

    None too if this machine does not know the zone, which the machine that accepted it knew.
    """
    try:
        return next(_following(schedule, zone, after))
    except (StopIteration, ValueError, OSError, KeyError):
        return None


@lru_cache(maxsize=1 << 17)
def _next_time(schedule: str, zone: str, after: datetime) -> datetime | None:
    """The same for Ticks, each of which asks again."""
    return next_time(schedule, zone, after)
