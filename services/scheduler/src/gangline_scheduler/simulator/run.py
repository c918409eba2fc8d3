"""A trace on a cluster under policies that are named: what the command and the tests call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gangline_scheduler.simulator.cluster import ClusterFile, Pool, teams_of
from gangline_scheduler.simulator.errors import BadInputError
from gangline_scheduler.simulator.ledger import PoolResult
from gangline_scheduler.simulator.live_policies import known, live_policy
from gangline_scheduler.simulator.references import NAMED, Named, live
from gangline_scheduler.simulator.trace import Trace, TraceJob

Progress = Callable[[str, int, int], None]
"""Told the policy, and how many of how many jobs have ended."""


@dataclass(frozen=True, slots=True)
class Workload:
    """The pools and who runs in each. `left_out`: jobs of teams that have no pool."""

    parts: tuple[tuple[Pool, tuple[TraceJob, ...]], ...]
    left_out: int = 0

    @property
    def jobs(self) -> int:
        """Jobs of all pools."""
        return sum(len(jobs) for _, jobs in self.parts)


def workload(path: Path, trace: Trace, cluster: ClusterFile) -> Workload:
    """Who runs where. Raises BadInputError if a gang is larger than its pool, or nobody is left.

    `path`: the trace's, for the messages.
    """
    own = teams_of(cluster)
    if own:
        parts = tuple(
            (pool, jobs) for team, pool in own.items() if (jobs := trace.of_teams([team]).jobs)
        )
    else:
        parts = ((cluster.pools[0], trace.jobs),)
    found = Workload(parts, len(trace.jobs) - sum(len(jobs) for _, jobs in parts))
    if not found.jobs:
        raise BadInputError(
            path, f"no job is of a team of the cluster file: {', '.join(own)}", field="team"
        )
    for pool, jobs in parts:
        largest = max(jobs, key=lambda job: job.gpus)
        if largest.gpus > pool.gpus:
            where = f"the pool of {pool.team}" if pool.team else "the cluster"
            raise BadInputError(
                path,
                f"{largest.name} asks for {largest.gpus} and {where} has {pool.gpus}; "
                "leave it out, or give a larger cluster",
                field="gpus",
            )
    return found


def simulate(policy: str, work: Workload, progress: Progress | None = None) -> list[PoolResult]:
    """Replay each pool. Raises ValueError for an unknown policy, StuckError if it cannot end."""
    named = find_policy(policy)
    results: list[PoolResult] = []
    done = 0
    for pool, jobs in work.parts:

        def tell(ended: int, before: int = done) -> None:
            if progress is not None:
                progress(policy, before + ended, work.jobs)

        results.append(named.prepare(pool, jobs).run(tell))
        done += len(jobs)
    return results


def find_policy(name: str) -> Named:
    """A policy by its name, or of the live scheduler's settings, for jobs that say their runtime.

    Raises ValueError that lists what there is.
    """
    if name in NAMED:
        return NAMED[name]
    try:
        policy = live_policy(name)
    except ValueError as error:
        raise ValueError(f"{error}; and by themselves {', '.join(NAMED)}") from None
    return Named(name, "settings of the live scheduler", live(policy, knows_durations=True))


def is_known(name: str) -> bool:
    """Whether there is such a policy."""
    try:
        find_policy(name)
    except ValueError:
        return False
    return True


def known_policies() -> Sequence[tuple[str, str]]:
    """Each policy's name and what it is; the last one stands for all of its kind."""
    named = [(named.name, named.title) for named in NAMED.values()]
    return [*named, ("short+reservation=off", f"settings of the live scheduler: {known()}")]
