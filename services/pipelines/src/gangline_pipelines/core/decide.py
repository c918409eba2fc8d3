"""The decisions of the pipelines service.

1. requests: pipelines are configured, runs begin, end and continue (requests.py); new snapshots.
   The registry: drift, and aliases from which steps start (aliases.py).
2. quota, scheduling, faults, workers, studies: the jobs and studies of steps (facts.py).
3. ticks: schedules, steps that are tried again, limits of time (triggers.py, facts.py).
4. outcomes of effects: whether the outputs of hits of the cache are in the store; sweeps of
   outputs that are not retained (retaining.py).

After each, queued runs begin where a run has ended. Cost per input: what it changes, and for an end
of a step the steps that it feeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from gangline_bus.codec import Received
from gangline_bus.decision import BaseDecider, Decision, EffectDone, Input, Observed, Tick
from gangline_bus.plan import Plan
from gangline_pipelines.core import aliases, facts, invariants, requests, retaining, triggers
from gangline_pipelines.core.model import Checked, CheckOutputs, Run, RunState, StepState, StoreAway
from gangline_pipelines.core.state import Clock, PipelinePlan, PipelineState, spec_of, steps_of
from gangline_pipelines.core.stepping import advance, stop
from gangline_schemas.catalog import Topic
from gangline_schemas.clocks import lasts
from gangline_schemas.events.model_requests import SnapshotProfiled
from gangline_schemas.events.pipeline_requests import SnapshotAnnounced
from gangline_schemas.events.pipelines import CheckDeferred, OutputsChecked
from gangline_schemas.events.registry import DriftFound

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 2.0, 60.0


class PipelineDecider(BaseDecider[PipelineState, Clock]):
    """The decider of gangline.pipelines."""

    name = "pipelines"
    log = Topic.PIPELINES
    inputs: tuple[Topic, ...] = (
        Topic.AUTOMATION, Topic.QUOTA, Topic.SCHEDULING, Topic.FAULTS, Topic.WORKERS, Topic.STUDIES,
        Topic.REGISTRY,
    )  # fmt: skip
    fold = retaining.fold

    def initial(self) -> PipelineState:
        """No pipelines."""
        return PipelineState()

    def decide(
        self,
        state: PipelineState,
        soft: Clock,
        item: Input,
        now: datetime,
    ) -> Sequence[Decision]:
        """See the module's docstring; a repeated input leads to nothing."""
        plan: PipelinePlan = Plan(state, soft, now, retaining.fold)
        match item:
            case Tick():
                _out_of_time(plan)
                facts.tick(plan)
                triggers.on_tick(plan)
                retaining.on_tick(plan)
            case EffectDone():
                if item.key.startswith(retaining.PREFIX):
                    retaining.done(plan, item)
                else:
                    _checked(plan, item)
            case Received():
                data = item.envelope.data
                if isinstance(data, SnapshotAnnounced | SnapshotProfiled):
                    triggers.on_snapshot(plan, data)
                elif isinstance(data, DriftFound):
                    triggers.on_drift(plan, data)
                elif isinstance(data, requests.PipelineRequest):
                    requests.take(plan, item.envelope)
                else:
                    facts.take(plan, data)
                    aliases.take(plan, data)
            case _:
                return []
        triggers.after_ends(plan)
        return plan.decisions

    def initial_soft(self) -> Clock:
        """No Tick came yet."""
        return Clock()

    def observe(
        self,
        state: PipelineState,
        soft: Clock,
        observed: Observed,
        now: datetime,
    ) -> Clock:
        """Note the time of a Tick, and the work of sweeps that have begun."""
        if not isinstance(observed, Tick):
            return soft
        sweeps = {
            team: soft.sweeps.get(team) or retaining.effect(state, team)
            for team, sweep in state.sweeps.items()
            if sweep.open
        }
        return Clock(now, soft.now, sweeps)

    def effects(self, state: PipelineState, soft: Clock) -> Mapping[str, object]:
        """The checks of outputs that runs wait for, one of a run at a time; open sweeps."""
        found: dict[str, object] = {}
        for run_id in state.live:
            run = state.runs[run_id]
            if run.asked <= run.checked or _later(run, soft):
                continue
            number = run.checked + 1
            key = f"{run_id}:{run.retries}:{number}:{run.check_tries}"
            found[key] = _check_of(state, run, number)
        for team, sweep in soft.sweeps.items():
            if state.sweeps[team].open:
                found[retaining.effect_key(state, team)] = sweep
        return found

    def check(self, state: PipelineState) -> list[str]:
        """See invariants.py."""
        return invariants.violations(state)


def _check_of(state: PipelineState, run: Run, number: int) -> CheckOutputs:
    """The check of this number: the outputs of hits, and checkpoints that steps start from."""
    steps = [
        step
        for _, step in steps_of(state, run)
        if step.state is StepState.CHECKING and step.check == number
    ]
    digests = {artifact.digest: None for step in steps for artifact in step.outputs.values()}
    saves = {step.saved_key: None for step in steps if step.saved_key is not None}
    return CheckOutputs(run.team, tuple(digests), tuple(saves))


def _later(run: Run, soft: Clock) -> bool:
    """Whether the store was away, and the check waits."""
    if run.check_at is None:
        return False
    longest = timedelta(seconds=_LONGEST_PAUSE_S)
    return soft.now is None or lasts(run.check_at - longest, soft.now, longest)


def _checked(plan: PipelinePlan, item: EffectDone) -> None:
    run_id, _, rest = item.key.partition(":")
    retries, number, tries = (int(part) for part in rest.split(":"))
    run = plan.state.runs.get(run_id)
    if run is None or run.state.ended or run.retries != retries:
        return
    if number != run.checked + 1 or tries != run.check_tries or number > run.asked:
        return
    match item.result:
        case Checked(missing=missing, gone=gone):
            checked = OutputsChecked(
                run_id=run_id, check=number, missing=missing, gone=gone, tries=tries
            )
            plan.add(run_id, checked)
            advance(plan, run_id)
        case StoreAway(reason=reason):
            pause_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(tries, 10))
            deferred = CheckDeferred(
                run_id=run_id,
                check=number,
                tries=tries + 1,
                reason=reason,
                next_at=plan.now + timedelta(seconds=pause_s),
            )
            plan.add(run_id, deferred)
        case _:
            pass


def _out_of_time(plan: PipelinePlan) -> None:
    for run_id in [*plan.state.live]:
        run = plan.state.runs[run_id]
        hours = spec_of(plan.state, run).limits.hours
        late = plan.now - run.started_at >= timedelta(hours=hours)
        if late and run.state is RunState.RUNNING:
            stop(plan, run_id, "failed", f"it ran for {hours:g} hours, its limits.hours")
