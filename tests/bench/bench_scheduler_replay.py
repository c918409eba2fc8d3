"""Two months of a real cluster, 68,503 jobs of 11 virtual clusters, replayed under each policy.

The jobs are Philly's of October and November 2017, with each virtual cluster halved (1,408 GPUs in
all). They go through the scheduler's own decide and evolve in virtual time, as `gangline simulate`
does it (docs/guides/simulate.md): one policy after the other. Each virtual cluster has a process of
its own, as many at once as there are CPUs. Measured: seconds until the results are there and
seconds of CPU of all processes, without reading the file.
"""

from __future__ import annotations

import os
import resource
import time

from harness import Context, Result
from scheduler_harness import trace_file

from gangline_simulator.cluster import read_cluster
from gangline_simulator.run import Workload, simulate, workload
from gangline_simulator.trace import day, read_trace

POLICIES = ("fifo", "sjf", "srtf", "tiresias", "gangline")
SINCE, UNTIL, FIRST_WEEK = "2017-10-01", "2017-11-30", "2017-10-07"


def two_months(until: str) -> Workload:
    """All jobs up to a day."""
    jobs_file, cluster_file = trace_file("philly_jobs.csv"), trace_file("philly_vc_nodes.csv")
    assert jobs_file is not None
    assert cluster_file is not None
    trace = read_trace(jobs_file, since=day(SINCE), until=day(until, end=True))
    return workload(jobs_file, trace, read_cluster(cluster_file).halved())


def run(context: Context) -> list[Result]:
    """Seconds of each policy; one week of two policies when quick. Asserts that all jobs ended."""
    work = two_months(FIRST_WEEK if context.quick else UNTIL)
    cpus = os.cpu_count() or 1
    results = []
    for policy in ("fifo", "gangline") if context.quick else POLICIES:
        started, spent_s = time.perf_counter(), _cpu_s()
        pools = simulate(policy, work, processes=cpus)
        took_s, cpu_s = time.perf_counter() - started, _cpu_s() - spent_s
        outcomes = [outcome for pool in pools for outcome in pool.outcomes]
        assert len(outcomes) == work.jobs, f"{policy}: {work.jobs - len(outcomes)} did not end"
        average_s = sum(outcome.jct_s for outcome in outcomes) / len(outcomes)
        context.say(f"{policy}: {took_s:.1f} s, {cpu_s:.1f} s of CPU")
        note = f"{work.jobs} jobs, average JCT {average_s:,.1f} s; {cpus} CPUs"
        results.append(context.result(f"replay_{policy}_s", took_s, "s", note=note))
        results.append(context.result(f"replay_{policy}_cpu_s", cpu_s, "s", note=note))
    return results


def _cpu_s() -> float:
    """Of this process and of those it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(item.ru_utime + item.ru_stime for item in used)
