"""15,000 workloads in 5 cohorts of 6 queues, as in Kueue's scalability test, in virtual time.

Each queue gets 350 small workloads (1 CPU for 0.2 s, one each 0.1 s) and 100 medium (5 CPUs for 0.5
s, one each 0.5 s). It also gets 50 large (20 CPUs for 1 s, one each 1.2 s). Its nominal quota is
20, and it may borrow 100 from its cohort. Here a CPU is a GPU slot. A queue is a team with a
guarantee of 20, a limit of 20 and 100 to borrow. A cohort is the team above its six, with a limit
of 120. Large ones have the best priority, as there.

Cohorts lend each other nothing, so each is a shard here: a scheduler's state of its own, one after
the other. In one state (`queues_one_state_cpu_s`) a pass looks at the groups of all 30 queues, and
a queue does not borrow while any other, of another cohort too, is owed what it waits for.

Every rank of a gang exits by itself, which is 3.7 inputs a workload and a pass after each last one.
The invariants are checked at each moment of virtual time: the service checks once a batch.
"""

from __future__ import annotations

import heapq
import time
from dataclasses import dataclass
from datetime import timedelta

from harness import Context, Result
from scheduler_harness import START, BusyCluster

from gangline_schemas.job import JobSpec
from gangline_schemas.team_limits import TeamConfig
from gangline_simulator.cluster import one_pool

COHORTS, QUEUES = 5, 6
NOMINAL, BORROW = 20, 100
SLOTS_PER_NODE = 20


@dataclass(frozen=True, slots=True)
class Kind:
    """One class of workloads. Times in seconds."""

    count: int
    cpus: int
    runs_s: float
    every_s: float
    priority: int


KINDS = (
    Kind(350, 1, 0.2, 0.1, 75),
    Kind(100, 5, 0.5, 0.5, 50),
    Kind(50, 20, 1.0, 1.2, 25),
)


@dataclass(frozen=True, slots=True)
class Ran:
    """What the whole run took."""

    workloads: int
    cpu_s: float
    virtual_s: float
    inputs: int
    utilization: float


def replay(cohorts: int) -> Ran:
    """Submit, start and end all workloads of so many cohorts; asserts that every one ended."""
    slots = cohorts * QUEUES * NOMINAL
    queues = [f"cohort-{number // QUEUES}-queue-{number % QUEUES}" for number in range(cohorts * 6)]
    nodes = one_pool(slots // SLOTS_PER_NODE, SLOTS_PER_NODE).pools[0].nodes
    cluster = BusyCluster(nodes, teams(cohorts), checks=False)
    moments = [
        (number * kind.every_s, index, queue, kind)
        for index, queue in enumerate(queues)
        for kind in KINDS
        for number in range(kind.count)
    ]
    arrivals = sorted(moments, key=lambda moment: (moment[0], moment[1], -moment[3].cpus))
    specs = {(queue, kind): spec(queue, kind) for queue in queues for kind in KINDS}
    arrivals.reverse()
    ends: list[tuple[float, str]] = []
    kinds: dict[str, Kind] = {}
    now_s, ended, worked = 0.0, 0, 0.0
    cpu = time.process_time()
    while arrivals or ends:
        due = [moments[-1][0] for moments in (arrivals,) if moments] + [e[0] for e in ends[:1]]
        now_s = min(due)
        cluster.now = START + timedelta(seconds=now_s)
        while ends and ends[0][0] <= now_s:
            cluster.finish(heapq.heappop(ends)[1])
            ended += 1
        while arrivals and arrivals[-1][0] <= now_s:
            _, _, queue, kind = arrivals.pop()
            kinds[cluster.submit(specs[queue, kind])] = kind
        cluster.check()
        for gang in cluster.allocated:
            kind = kinds[gang.job_id]
            worked += kind.cpus * kind.runs_s
            heapq.heappush(ends, (now_s + kind.runs_s, gang.job_id))
        cluster.allocated.clear()
    cpu_s = time.process_time() - cpu
    assert ended == len(moments), f"{len(moments) - ended} workloads wait for ever"
    return Ran(ended, cpu_s, now_s, len(cluster.cycles), worked / (slots * now_s))


def teams(cohorts: int) -> list[TeamConfig]:
    """A team for each cohort, and its queues below it."""
    found = []
    for cohort in range(cohorts):
        name = f"cohort-{cohort}"
        found.append(TeamConfig(team=name, gpu_limit=QUEUES * NOMINAL))
        found += [
            TeamConfig(
                team=f"{name}-queue-{queue}",
                gpu_limit=NOMINAL,
                gpu_guarantee=NOMINAL,
                borrow_limit=BORROW,
                parent=name,
            )
            for queue in range(QUEUES)
        ]
    return found


def spec(queue: str, kind: Kind) -> JobSpec:
    """One workload of the class."""
    return JobSpec.model_validate(
        {
            "name": "bench",
            "team": queue,
            "priority": kind.priority,
            "command": ["x"],
            "resources": {"gpus": kind.cpus},
            "expected_runtime_hours": kind.runs_s / 3600,
        }
    )


def run(context: Context) -> list[Result]:
    """CPU seconds for all of them; of one cohort when quick."""
    shards = [replay(1) for _ in range(context.repeats(COHORTS))]
    workloads, cpu_s = sum(ran.workloads for ran in shards), sum(ran.cpu_s for ran in shards)
    results = [
        context.result("queues_cpu_s", cpu_s, "s", note=told(shards)),
        context.result("queues_workloads_per_cpu_s", workloads / cpu_s, "1/s"),
    ]
    if not context.quick:
        together = replay(COHORTS)
        note = told([together])
        results.append(context.result("queues_one_state_cpu_s", together.cpu_s, "s", note=note))
    return results


def told(shards: list[Ran]) -> str:
    """What ran, in words."""
    return (
        f"{sum(ran.workloads for ran in shards)} workloads, {sum(ran.inputs for ran in shards)} "
        f"inputs, {max(ran.virtual_s for ran in shards):.1f} s of virtual time, "
        f"{100 * min(ran.utilization for ran in shards):.0f} % of the quota used"
    )
