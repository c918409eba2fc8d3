"""Two months of a real cluster, 68,503 jobs of 11 virtual clusters, replayed under each policy.

The jobs of October and November 2017 of Philly, every virtual cluster halved (1,408 GPUs in all),
through the scheduler's own decide and evolve in virtual time (docs/guides/simulate.md). Seconds
of CPU for each policy, without reading the file. Each policy runs in a process of its own, as many
at once as there are CPUs.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

from harness import Context, Result
from scheduler_scene import trace_file

from gangline_scheduler.simulator.cluster import read_cluster, teams_of
from gangline_scheduler.simulator.references import NAMED
from gangline_scheduler.simulator.trace import day, read_trace

POLICIES = ("fifo", "sjf", "srtf", "tiresias", "gangline")
SINCE, UNTIL, FIRST_WEEK = "2017-10-01", "2017-11-30", "2017-10-07"


@dataclass(frozen=True, slots=True)
class Ran:
    """One policy's replay. `slowest`: the virtual cluster that took the longest, and how long."""

    policy: str
    jobs: int
    cpu_s: float
    average_jct_s: float
    slowest: tuple[str, float]


def replay(policy: str, until: str) -> Ran:
    """Replay all virtual clusters; asserts that every job ended."""
    jobs_file, cluster_file = trace_file("philly_jobs.csv"), trace_file("philly_vc_nodes.csv")
    assert jobs_file is not None
    assert cluster_file is not None
    pools = teams_of(read_cluster(cluster_file).halved())
    trace = read_trace(jobs_file, since=day(SINCE), until=day(until, end=True))
    jobs = trace.of_teams([*pools]).jobs
    took: dict[str, float] = {}
    outcomes = []
    for team, pool in pools.items():
        started = time.process_time()
        own = [job for job in jobs if job.team == team]
        outcomes += NAMED[policy].prepare(pool, own).run().outcomes
        took[team] = time.process_time() - started
    assert len(outcomes) == len(jobs), f"{policy}: {len(jobs) - len(outcomes)} jobs did not end"
    slowest = max(took, key=lambda team: took[team])
    average_s = sum(outcome.jct_s for outcome in outcomes) / len(outcomes)
    return Ran(policy, len(jobs), sum(took.values()), average_s, (slowest, took[slowest]))


def run(context: Context) -> list[Result]:
    """CPU seconds of each policy; one week of two policies when quick."""
    policies = ("fifo", "gangline") if context.quick else POLICIES
    until = FIRST_WEEK if context.quick else UNTIL
    results = []
    with ProcessPoolExecutor(os.cpu_count() or 1, mp_context=get_context("spawn")) as pool:
        for ran in pool.map(replay, policies, [until] * len(policies)):
            context.say(f"{ran.policy}: {ran.cpu_s:.1f} s")
            note = (
                f"{ran.jobs} jobs, average JCT {ran.average_jct_s:,.1f} s; "
                f"{ran.slowest[1]:.1f} s of it for {ran.slowest[0]}"
            )
            name = f"replay_{ran.policy}_cpu_s"
            results.append(context.result(name, ran.cpu_s, "s", note=note))
    return results
