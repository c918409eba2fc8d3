"""From a seed to a plan: a small cluster, a few jobs, and a subset of the kinds of faults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from gangsim.faults import KINDS
from gangsim.plan import Fault, JobPlan, NodePlan, Plan
from gangsim.poison import HARMLESS

SERVICES = ("quota", "scheduler", "fault-manager", "checkpoint-service")
POINTS = (
    "poll",
    "takeover",
    "takeover.fenced",
    "commit.begin",
    "commit.produced",
    "commit.offsets",
    "commit.ended",
)
CHAOS_S = 270.0
CPU_JOBS, CPU_NODES = 0.2, 0.3
"""So many jobs have no GPUs, and in so many seeds a node has none."""


def draw(seed: int, kinds: Sequence[str] | None = None) -> Plan:
    """The plan of a seed; `kinds` are drawn from if given, else the seed chooses some of all."""
    random = Random(f"{seed}/plan")
    nodes = tuple(
        NodePlan(f"n{index}", random.choice((2, 2, 3)), f"rack-{index % 2}")
        for index in range(random.choice((2, 3, 3)))
    )
    drawn = [_job(random, index) for index in range(random.randint(3, 5))]
    workers = Random(f"{seed}/workers")
    jobs = tuple(_in_workers(workers, job) for job in drawn)
    chosen = list(kinds) if kinds else random.sample(sorted(KINDS), random.randint(2, 7))
    faults = sorted(
        (_fault(random, random.choice(chosen), nodes, jobs) for _ in range(random.randint(3, 11))),
        key=lambda fault: fault.at_s,
    )
    without = Random(f"{seed}/cpus")
    jobs = tuple(_without_gpus(without, job) for job in jobs)
    if without.random() < CPU_NODES:
        nodes = (*nodes, NodePlan("c0", 0, "rack-0"))
    return Plan(seed, nodes, jobs, tuple(faults), CHAOS_S)


def _job(random: Random, index: int) -> JobPlan:
    team = random.choice(("red", "blue"))
    gpus = random.choice((1, 1, 2, 2, 3, 4, 6, 9)) if index else 2
    return JobPlan(
        job_id=f"j{index}",
        team=team,
        gpus=gpus,
        steps=random.randint(8, 24),
        step_s=round(random.uniform(3.0, 9.0), 2),
        save_every=random.randint(2, 5),
        submit_s=round(random.uniform(0.0, 150.0), 2),
        priority=random.choice((25, 50, 75)),
        grace_s=random.choice((0.0, 5.0, 20.0)),
        keep=random.choice((1, 2, 3)),
        max_runtime_s=random.choice((0.0, 0.0, 0.0, 0.0, 60.0)),
        resume_from="j0" if index and random.random() < 0.15 else "",
        min_gpus=random.choice((0, 0, 1, (gpus + 1) // 2)),
    )


def _without_gpus(random: Random, job: JobPlan) -> JobPlan:
    """The job on CPUs alone, or as it is. One that resumes another keeps its ranks."""
    cpus, nodes = random.choice((1.0, 3.0, 6.0)), random.choice((1, 1, 2))
    if random.random() >= CPU_JOBS or job.job_id == "j0" or job.resume_from:
        return job
    return replace(job, cpus=cpus, gpus=nodes, min_gpus=0, gpus_per_worker=1)


def _in_workers(random: Random, job: JobPlan) -> JobPlan:
    """The job with workers of several GPUs, in a third of those that can have them."""
    each = random.choice((1, 1, 1, 1, 2, 3))
    if job.gpus % each:
        return job
    return replace(job, gpus_per_worker=each, min_gpus=-(-job.min_gpus // each) * each)


def _fault(  # noqa: PLR0911, PLR0912 - one case for each kind
    random: Random, kind: str, nodes: Sequence[NodePlan], jobs: Sequence[JobPlan]
) -> Fault:
    at_s = round(random.uniform(5.0, CHAOS_S * 0.8), 2)
    service, node = random.choice(SERVICES), random.choice(nodes).node_id
    job = random.choice(jobs).job_id
    short, long = round(random.uniform(2, 20), 1), round(random.uniform(15, 110), 1)
    match kind:
        case "crash":
            return Fault(at_s, kind, service, 60.0, detail=random.choice(POINTS))
        case "forget":
            return Fault(at_s, kind, service)
        case "pause":
            return Fault(at_s, kind, service, long, detail=random.choice(("commit", "cycle")))
        case "clock":
            jump_s = random.choice((-3600.0, -120.0, -8.0, 8.0, 120.0, 3600.0))
            return Fault(at_s, kind, random.choice((service, node)), long, jump_s)
        case "leak":
            detail = random.choice(("in the next", "later"))
            return Fault(at_s, kind, service, 60.0, short / 4, detail)
        case "poison":
            silent = float(random.random() < 0.3)
            return Fault(at_s, kind, service, 60.0, silent, random.choice(HARMLESS[service]))
        case "broker":
            return Fault(at_s, kind, "broker", random.choice((short, long)))
        case "silence":
            return Fault(at_s, kind, "all", long, detail=random.choice(("unread", "lost")))
        case "duplicate":
            return Fault(at_s, kind, random.choice((node, "users")), long)
        case "garbage":
            return Fault(at_s, kind, random.choice(("gangline.requests", "gangline.workers")))
        case "user.team":
            team = random.choice(("red", "blue"))
            return Fault(at_s, kind, team, long, random.randint(0, 4))
        case "agent.pause" | "cut.send" | "cut.receive" | "late" | "rank.hang" | "user.drain":
            return Fault(at_s, kind, node, random.choice((short, long)))
        case "rank.crash":
            return Fault(at_s, kind, node, amount=random.choice((6, 9, 11)))
        case "store.away":
            return Fault(at_s, kind, "store", long, detail=random.choice(("away", "full")))
        case "store.damage":
            detail = random.choice(("torn", "flip"))
            return Fault(at_s, kind, "store", amount=random.randint(1, 3), detail=detail)
        case "user.again":
            return Fault(at_s, kind, job, amount=random.randint(0, 1))
        case "user.priority":
            return Fault(at_s, kind, job, amount=random.randrange(100))
        case _:
            target = job if kind.startswith("user.") else node
            return Fault(at_s, kind, target)
