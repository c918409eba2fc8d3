"""Invariants that hold after each cycle; one sentence for each violation."""

from __future__ import annotations

from collections.abc import Iterator

from gangline_quota.core.state import State


def broken(state: State) -> list[str]:
    """Checked in tests, in the simulator and before each commit. Cost: live gangs, team-months."""
    return [*_meters(state), *_teams(state), *_sums(state)]


def ledger_broken(state: State) -> list[str]:
    """The sum over jobs is the sum over teams, exactly. Cost: every job that is remembered."""
    jobs = sum(job.gpu_us for job in state.active.values())
    jobs += sum(job.gpu_us for job in state.ended.values())
    jobs += state.totals_us.get("forgotten", 0)
    teams = sum(state.spent_us.values())
    if jobs == teams:
        return []
    return [f"jobs used {jobs} GPU-microseconds, but teams {teams}"]


def _meters(state: State) -> Iterator[str]:
    allocated: dict[str, int] = {}
    for (job_id, attempt), meter in state.meters.items():
        allocated[meter.team] = allocated.get(meter.team, 0) + meter.gpus
        if meter.team not in state.teams:
            yield f"the meter of {job_id}/{attempt} is of team {meter.team}, which is not known"
    if allocated != state.allocated:
        yield f"teams have {state.allocated} GPUs, but their meters say {allocated}"


def _teams(state: State) -> Iterator[str]:
    for name, config in state.teams.items():
        above, steps = config.parent, 0
        while above is not None and above in state.teams and steps <= len(state.teams):
            above, steps = state.teams[above].parent, steps + 1
        if above is not None:
            yield f"team {name} has no root: '{above}' is not known, or is below itself"


def _sums(state: State) -> Iterator[str]:
    teams, charged = sum(state.spent_us.values()), state.totals_us.get("charged", 0)
    if teams != charged:
        yield f"teams used {teams} GPU-microseconds, but {charged} were charged"
    for (team, month), amount in state.spent_us.items():
        if amount < 0:
            yield f"team {team} used {amount} GPU-microseconds in {month}"
