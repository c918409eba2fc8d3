"""Invariants that hold after each cycle; one sentence for each violation."""

from __future__ import annotations

from collections.abc import Iterator

from gangline_quota.core.state import ActiveJob, EndedJob, State


def broken(state: State) -> list[str]:
    """Checked in tests, in the simulator and before each commit. Cost: live gangs, teams."""
    return [*_meters(state), *_teams(state), *_sums(state)]


def ledger_broken(state: State) -> list[str]:
    """The sum over jobs is the sum over teams, exactly. Cost: every job that is remembered."""
    known: list[ActiveJob | EndedJob] = [*state.active.values(), *state.ended.values()]
    gpu_us = sum(job.gpu_us for job in known) + state.totals_us.get("forgotten", 0)
    cpu_us = sum(job.cpu_us for job in known) + state.totals_us.get("cpu_forgotten", 0)
    teams, cpu_teams = sum(state.spent_us.values()), sum(state.spent_cpu_us.values())
    found = []
    if gpu_us != teams:
        found.append(f"jobs used {gpu_us} GPU-microseconds, but teams {teams}")
    if cpu_us != cpu_teams:
        found.append(f"jobs used {cpu_us} thousandths of CPU-microseconds, but teams {cpu_teams}")
    return found


def _meters(state: State) -> Iterator[str]:
    allocated: dict[str, int] = {}
    cpus: dict[str, int] = {}
    for (job_id, attempt), meter in state.meters.items():
        if meter.gpus:
            allocated[meter.team] = allocated.get(meter.team, 0) + meter.gpus
        if meter.cpus:
            cpus[meter.team] = cpus.get(meter.team, 0) + meter.cpus
        if meter.team not in state.teams:
            yield f"the meter of {job_id}/{attempt} is of team {meter.team}, which is not known"
    if allocated != state.allocated:
        yield f"teams have {state.allocated} GPUs, but their meters say {allocated}"
    if cpus != state.cpus:
        yield f"teams have {state.cpus} thousandths of CPUs, but their meters say {cpus}"


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
    cpu_teams, charged = sum(state.spent_cpu_us.values()), state.totals_us.get("cpu_charged", 0)
    if cpu_teams != charged:
        yield f"teams used {cpu_teams} thousandths of CPU-microseconds, but {charged} were charged"
    for (team, month), amount in state.spent_us.items():
        if amount < 0:
            yield f"team {team} used {amount} GPU-microseconds in {month}"
