"""A trace on a cluster under policies that are named: what the command and the tests call.

Pools share nothing, so large traces are replayed with a process for each pool, as many at once as
there are CPUs; the longest begin first. The results are the same as one after the other.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gangline_simulator.cluster import ClusterFile, Pool, teams_of
from gangline_simulator.errors import BadInputError
from gangline_simulator.ledger import PoolResult
from gangline_simulator.live_policies import known, live_policy
from gangline_simulator.references import NAMED, Named, live
from gangline_simulator.trace import Trace, TraceJob

Progress = Callable[[str, int, int], None]
"""Gets the policy, and how many of how many jobs have ended."""
ALONE = 5000
"""So many jobs are replayed before processes would have started."""
_LOOK_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class Workload:
    """The pools and the teams in each. `left_out`: jobs of teams that have no pool."""

    parts: tuple[tuple[Pool, tuple[TraceJob, ...]], ...]
    left_out: int = 0

    @property
    def jobs(self) -> int:
        """Jobs of all pools."""
        return sum(len(jobs) for _, jobs in self.parts)


def workload(path: Path, trace: Trace, cluster: ClusterFile) -> Workload:
    """Jobs by their pools. Raises BadInputError if a gang is larger than its pool, or none is left.

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
        for each in sorted({job.gpus_per_worker for job in jobs}):
            room = sum(len(node.gpus) // each * each for node in pool.nodes)
            _check_largest(path, pool, [job for job in jobs if job.gpus_per_worker == each], room)
    return found


def _check_largest(path: Path, pool: Pool, jobs: Sequence[TraceJob], room: int) -> None:
    """Raise BadInputError if one of these jobs with equal workers is larger than the room."""
    largest = max(jobs, key=lambda job: job.gpus)
    each = largest.gpus_per_worker
    if largest.gpus > room:
        where = f"the pool of {pool.team}" if pool.team else "the cluster"
        workers = f" in workers of {each}" if each > 1 else ""
        raise BadInputError(
            path,
            f"{largest.name} asks for {largest.gpus}{workers} and {where} has {room}; "
            "leave it out, or give a larger cluster",
            field="gpus",
        )


def simulate(
    policy: str, work: Workload, progress: Progress | None = None, *, processes: int | None = None
) -> list[PoolResult]:
    """Replay each pool, up to `processes` at once; by default large traces on all CPUs.

    Raises ValueError for an unknown policy, StuckError if a replay cannot end.
    """
    named = find_policy(policy)

    def report(ended: int, before: int = 0) -> None:
        if progress is not None:
            progress(policy, before + ended, work.jobs)

    if processes is None:
        processes = (os.cpu_count() or 1) if work.jobs > ALONE else 1
    workers = min(processes, len(work.parts))
    if workers > 1:
        return _at_once(policy, work, report, workers)
    results: list[PoolResult] = []
    for pool, jobs in work.parts:
        before = sum(len(result.outcomes) for result in results)
        results.append(named.prepare(pool, jobs).run(partial(report, before=before)))
    return results


def _at_once(
    policy: str, work: Workload, report: Callable[[int], None], workers: int
) -> list[PoolResult]:
    context = multiprocessing.get_context("spawn")
    ended = context.RawArray(ctypes.c_longlong, len(work.parts))
    longest_first = sorted(enumerate(work.parts), key=lambda part: -len(part[1][1]))
    with ProcessPoolExecutor(workers, context, _share, (ended,)) as executor:
        futures = {
            executor.submit(_replay_part, policy, index, pool, jobs): index
            for index, (pool, jobs) in longest_first
        }
        pending = set(futures)
        try:
            while pending:
                done, pending = wait(pending, _LOOK_EVERY_S, FIRST_COMPLETED)
                report(sum(ended))
                for future in done:
                    future.result()
        except BaseException:
            executor.shutdown(cancel_futures=True)
            raise
    found = {index: future.result() for future, index in futures.items()}
    return [found[index] for index in range(len(work.parts))]


_ended: ctypes.Array[ctypes.c_longlong]
"""In a pool's process: how many jobs of each pool have ended, shared with the one that asked. Each
place has one writer, so there is no lock."""


def _share(ended: ctypes.Array[ctypes.c_longlong]) -> None:
    global _ended  # noqa: PLW0603 - an executor's initializer has no other way to hand it on
    _ended = ended


def _replay_part(policy: str, index: int, pool: Pool, jobs: Sequence[TraceJob]) -> PoolResult:
    def report(ended: int) -> None:
        _ended[index] = ended

    return find_policy(policy).prepare(pool, jobs).run(report)


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
