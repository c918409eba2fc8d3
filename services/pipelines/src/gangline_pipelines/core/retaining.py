"""Retention of outputs: which entries of the cache and runs let theirs go, and the sweeps.

A team is swept once a day, if one of its pipelines has `retention`. Then all artifacts go that
neither the cache nor a run needs. No step of the team begins meanwhile, and a sweep waits until
none runs: a job may store the very bytes that are about to go. If steps never pause for two days,
the team is swept all the same, and the outputs of those that ran are looked for when they end.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from gangline_bus.decision import EffectDone
from gangline_pipelines.core import facts
from gangline_pipelines.core.evolve_steps import fold
from gangline_pipelines.core.model import Deleted, DeleteOutputs, Run, Sweep
from gangline_pipelines.core.naming import pipeline_key
from gangline_pipelines.core.state import PipelinePlan, PipelineState, spec_key, steps_of
from gangline_pipelines.core.stepping import advance
from gangline_schemas.clocks import lasts
from gangline_schemas.events.pipelines import MOST_SWEPT, SweepBegun, SweepEnded
from gangline_schemas.pipeline_file import OutputRetention

__all__ = ["fold"]
EVERY = timedelta(days=1)
LONGEST = timedelta(days=2)
"""So long a sweep waits for steps that run, since the last one began."""
PREFIX = "sweep:"
"""Keys of effects begin with it; no id of a run has a colon."""


def on_tick(plan: PipelinePlan) -> None:
    """Begin a sweep that is due, of a team whose steps do not run or never pause.

    Another one begins at the next Tick. The team whose last one is the longest ago goes first.
    """
    sweeps = plan.state.sweeps
    teams = [(team, since, sweeps.get(team)) for team, since in _teams(plan.state).items()]
    teams.sort(key=lambda one: one[1] if one[2] is None else one[2].begun_at)
    for team, since, last in teams:
        if last is not None and (last.open or lasts(last.begun_at, plan.now, EVERY)):
            continue
        waits = lasts(since if last is None else last.begun_at, plan.now, LONGEST)
        if waits and _busy(plan.state, team):
            continue
        rules = _Rules(plan.state, team, plan.now)
        keys = [
            name.removeprefix(f"{team}/")
            for name, kept in plan.state.kept.items()
            if name.startswith(f"{team}/") and rules.over(kept.pipeline, kept.used_by, kept.used_at)
        ]
        runs = [run.run_id for run in plan.state.runs.values() if rules.ended(run)]
        begun = SweepBegun(
            team=team,
            number=1 if last is None else last.number + 1,
            keys=tuple(keys[:MOST_SWEPT]),
            runs=tuple(runs[:MOST_SWEPT]),
        )
        plan.add(team, begun)
        return


def effect(state: PipelineState, team: str) -> DeleteOutputs:
    """The work of a team's open sweep. Cost: the cache, and the steps of the team's runs."""
    keep = {
        artifact.digest
        for name, kept in state.kept.items()
        if name.startswith(f"{team}/")
        for artifact in kept.outputs.values()
    }
    for run in state.runs.values():
        if run.team == team and not run.swept:
            outputs = (step.outputs.values() for _, step in steps_of(state, run))
            keep |= {artifact.digest for some in outputs for artifact in some}
    return DeleteOutputs(team, frozenset(keep))


def effect_key(state: PipelineState, team: str) -> str:
    """The key of a team's open sweep."""
    return f"{PREFIX}{team}:{state.sweeps[team].number}"


def done(plan: PipelinePlan, item: EffectDone) -> None:
    """End a sweep; the steps that waited for it begin."""
    team, _, number = item.key.removeprefix(PREFIX).partition(":")
    sweep = plan.state.sweeps.get(team)
    if sweep is None or not sweep.open or str(sweep.number) != number:
        return
    if not isinstance(item.result, Deleted):
        raise TypeError(f"{item.key}: {type(item.result).__name__} is no outcome of a sweep")
    found = item.result
    ended = SweepEnded(
        team=team, number=sweep.number, artifacts=found.artifacts, objects=found.objects,
        size_bytes=found.size_bytes, problem=found.problem,
    )  # fmt: skip
    plan.add(team, ended)
    for run_id, name in [*plan.state.waiting.values()]:
        if plan.state.runs[run_id].team == team:
            facts.conclude(plan, run_id, name)
    for run_id in [*plan.state.live]:
        if plan.state.runs[run_id].team == team:
            advance(plan, run_id, ())


class _Rules:
    """The retention of a team's pipelines at one time."""

    def __init__(self, state: PipelineState, team: str, now: datetime) -> None:
        self._state, self._team, self._now = state, team, now
        self._newer: dict[str, int] = {}
        """How many newer runs of its pipeline have ended, by run."""
        counts: dict[str, int] = {}
        newest_first = sorted(
            state.runs.values(), key=lambda one: (one.started_at, one.number), reverse=True
        )
        for run in newest_first:
            if run.team == team and run.state.ended:
                self._newer[run.run_id] = counts.get(run.pipeline, 0)
                counts[run.pipeline] = self._newer[run.run_id] + 1

    def over(self, pipeline: str, run_id: str, at: datetime) -> bool:
        """Whether outputs that a run used at this time may go."""
        rule = _retention(self._state, self._team, pipeline)
        if rule is None or run_id in self._state.live:
            return False
        young = rule.days is not None and self._now - at < timedelta(days=rule.days)
        newer = self._newer.get(run_id)
        newest = rule.runs is not None and newer is not None and newer < rule.runs
        return not young and not newest

    def ended(self, run: Run) -> bool:
        """Whether the outputs of a run may go, which did not before."""
        if run.team != self._team or run.swept or run.ended_at is None:
            return False
        return run.state.ended and self.over(run.pipeline, run.run_id, run.ended_at)


def _retention(state: PipelineState, team: str, pipeline: str) -> OutputRetention | None:
    held = state.pipelines.get(pipeline_key(team, pipeline))
    if held is None:
        return None
    return state.specs[spec_key(team, pipeline, held.revision)].retention


def _teams(state: PipelineState) -> dict[str, datetime]:
    """The teams of which a pipeline has `retention`, and since when the first one has its file."""
    found: dict[str, datetime] = {}
    for held in state.pipelines.values():
        if _retention(state, held.team, held.name) is not None:
            found[held.team] = min(held.configured_at, found.get(held.team, held.configured_at))
    return found


def _busy(state: PipelineState, team: str) -> bool:
    return any(state.runs[run_id].team == team for run_id, _ in state.jobs.values())


@fold.on(SweepBegun)
def _(state: PipelineState, event: SweepBegun, at: datetime) -> None:
    state.sweeps[event.team] = Sweep(event.number, at)
    for key in event.keys:
        state.kept.pop(f"{event.team}/{key}", None)
    for run_id in event.runs:
        if run_id in state.runs:
            state.runs[run_id] = replace(state.runs[run_id], swept=True)


@fold.on(SweepEnded)
def _(state: PipelineState, event: SweepEnded, at: datetime) -> None:
    state.sweeps[event.team] = replace(state.sweeps[event.team], ended_at=at)
