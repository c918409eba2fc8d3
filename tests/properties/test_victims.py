"""Which gangs are stopped: never a dearer set than the best one, whatever the jobs are called."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf
from random import Random

import pytest

from gangline_scheduler.core.model import Demand, NodeAllocation
from gangline_scheduler.core.policy import cheapest
from gangline_scheduler.core.policy.cheapest import GAP, TIE, Wanted
from gangline_scheduler.core.policy.config import Policy
from gangline_scheduler.core.policy.session import Session
from gangline_scheduler.core.policy.statement import Snapshot, Statement
from gangline_scheduler.core.policy.victim_sets import VictimSet, victim_sets
from gangline_scheduler.core.policy.victims import Victim
from gangline_schemas.events.quota import TeamConfigured
from gangline_schemas.events.scheduling import StopReason
from support.builders.deciding import team
from support.builders.scheduler import Cluster, node, stopped_for

STATES = int(os.environ.get("GANGLINE_VICTIM_STATES", "40"))
RUNS: dict[str, object] = {"preemptible": True, "expected_runtime_hours": 90}
URGENT: dict[str, object] = {"priority": 10, "expected_runtime_hours": 5}


@dataclass(frozen=True)
class Drawn:
    """A job of a random cluster: its GPUs, and what it says."""

    gpus: int
    of_team: str
    fields: dict[str, object]
    saved: bool


def drawn(draw: Random, count: int, *, cpus: bool, elastic: float = 0.0) -> list[Drawn]:
    """`elastic`: how many of them may have fewer GPUs than they ask for."""
    jobs = [
        Drawn(
            draw.choice((1, 1, 1, 2, 2, 3, 4, 6)),
            draw.choice(("nlp", "cv")),
            {
                **RUNS,
                "priority": draw.choice((40, 50, 50, 60)),
                "preemptible": draw.random() < 0.9,
                "stop_grace_seconds": draw.choice((30, 120, 120, 600)),
                "resources": {"cpus_per_gpu": draw.choice((1, 4)) if cpus else 1},
            },
            draw.random() < 0.7,
        )
        for _ in range(count)
    ]
    for job in jobs if elastic else ():
        if job.gpus > 1 and draw.random() < elastic:
            least = draw.randrange(1, job.gpus)
            counts = draw.choice((None, [least, job.gpus]))
            job.fields["preemptible"] = draw.random() < 0.3
            job.fields["resources"] |= {"min_gpus": least, "gpu_counts": counts}  # type: ignore[operator]
    return jobs


def cluster_of(draw: Random, jobs: Sequence[tuple[str, Drawn]], *, nodes: int) -> Cluster:
    """These jobs on as many of a few nodes as they find, each a few minutes after the other."""
    cpus = draw.choice((12, 64))
    cluster = Cluster(*(node(f"n{i}", 4, rack=f"r{i // 2}", cpus=cpus) for i in range(nodes)))
    guarantee = draw.choice((0, 3))
    for name in ("nlp", "cv"):
        cluster.give(TeamConfigured(config=team(name, limit=64, guarantee=guarantee)))
    pauses = [(60 + draw.randrange(900), draw.randrange(2000)) for _ in jobs]
    for (name, job), (pause, _) in zip(jobs, pauses, strict=True):
        cluster.run(name, job.gpus, of_team=job.of_team, **job.fields)
        cluster.tick(seconds=pause)
    for (name, job), (_, pause) in zip(jobs, pauses, strict=True):
        if job.saved and cluster.job(name).gang is not None:
            cluster.commit(name, 1)
            cluster.tick(seconds=pause)
    cluster.tick(seconds=1800)
    return cluster


def waiting(cluster: Cluster, draw: Random) -> tuple[Session, Demand, str]:
    """A job that waits, and what it asks for."""
    gpus = draw.choice((1, 2, 3, 4, 4, 5, 6, 8))
    per_gpu = draw.choice((1, 1, 3))
    each = draw.choice([each for each in (1, 1, 2, 3, 4) if gpus % each == 0])
    need = {"cpus_per_gpu": per_gpu, "gpus_per_worker": each}
    cluster.submit("w", gpus, priority=90, resources=need)
    harness = Session(cluster.state, cluster.now, Policy())
    return harness, Demand(gpus=gpus, cpus_per_gpu=per_gpu, gpus_per_worker=each), "w"


def domains(snapshot: Snapshot) -> Iterator[list[frozenset[str]]]:
    """The domains of each level, closest first, as sets of nodes."""
    nodes = list(snapshot.free.nodes())
    for level in range(len(snapshot.levels) + 2):
        names = {free.path[level] for free in nodes}
        yield [
            frozenset(free.node_id for free in nodes if free.path[level] == name)
            for name in sorted(names)
        ]


def cost_of(victims: Sequence[Victim], gpus: int) -> float:
    delay_s = max((victim.delay_s for victim in victims), default=0.0)
    return sum(victim.cost for victim in victims) + gpus * delay_s


def all_sets(victims: Sequence[Victim]) -> Iterator[tuple[Victim, ...]]:
    """Every set that has one step of a gang at most."""
    steps: dict[str, list[Victim | None]] = {}
    for victim in victims:
        steps.setdefault(victim.job.job_id, [None]).append(victim)
    for chosen in product(*steps.values()):
        if found := tuple(victim for victim in chosen if victim is not None):
            yield found


def carry_out(statement: Statement, victim: Victim, names: frozenset[str]) -> None:
    """Stop it, or let it shrink: of its GPUs on these nodes it gives its last ranks' first."""
    if not victim.left:
        statement.evict(victim.job)
        return
    gang, missing = victim.job.gang, victim.gpus
    for part in reversed(gang.nodes if gang is not None else ()):
        gpus = part.gpus[-min(missing, len(part.gpus)) :] if missing else ()
        if part.node_id in names and gpus:
            missing -= len(gpus)
            statement.give([(part.node_id, NodeAllocation.of(gpus, victim.job.spec.resources, ""))])


def best_by_trying_all(wanted: Wanted, snapshot: Snapshot, victims: Sequence[Victim]) -> float:
    """The cost of the cheapest set at the closest level where one makes room; inf: nowhere."""
    everywhere = {free.node_id for free in snapshot.free.nodes()}
    missing = wanted.demand.gpus - snapshot.free_gpus
    sets = sorted(
        (cost_of(chosen, wanted.demand.gpus), [victim.turn for victim in chosen], chosen)
        for chosen in all_sets(victims)
        if sum(victim.gpus for victim in chosen) >= missing and allowed(wanted, chosen)
    )
    for level in domains(snapshot):
        for cost, _, chosen in sets:
            for names in level:
                statement = Statement(inside := snapshot.without(frozenset(everywhere - names)))
                for victim in chosen:
                    carry_out(statement, victim, names)
                if statement.place(wanted.demand) is not None:
                    assert inside is not snapshot
                    return cost
    return inf


def allowed(wanted: Wanted, victims: Sequence[Victim]) -> bool:
    taken: dict[str, int] = {}
    for victim in victims:
        if not wanted.guarantees.allow(victim, taken):
            return False
        wanted.guarantees.take(victim.job, victim.gpus, taken)
    return True


def first(wanted: Wanted, snapshot: Snapshot, victims: Sequence[Victim]) -> VictimSet | None:
    return next(victim_sets(wanted, snapshot, victims, victims), None)


@pytest.mark.parametrize("elastic", [0.0, 0.6])
@pytest.mark.parametrize("exact", [True, False])
def test_no_set_is_dearer_than_the_best_or_than_the_gap_allows(
    *, exact: bool, elastic: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exact: every state. Else as with many gangs: twice the best, where only GPUs are missing.

    That bound holds where guarantees forbid no gang.
    """
    if not exact:
        monkeypatch.setattr(cheapest, "EXACT", 0)
    found = both = 0
    for seed in range(STATES):
        draw = Random(seed)
        jobs = [(f"j{i}", job) for i, job in enumerate(drawn(draw, 8, cpus=exact, elastic=elastic))]
        cluster = cluster_of(draw, jobs, nodes=draw.choice((2, 3, 4)))
        harness, demand, name = waiting(cluster, draw)
        if not exact:
            demand = Demand(gpus=demand.gpus)
        snapshot = harness.question(cluster.job(name))
        if snapshot is None or not harness.steps:
            continue
        guarantees = harness.guarantees(cluster.job(name))
        wanted = Wanted(cluster.job(name), demand, guarantees)
        victim_set = first(wanted, snapshot.snapshot, harness.steps)
        best = best_by_trying_all(wanted, snapshot.snapshot, harness.steps)
        cost = victim_set.cost if victim_set is not None else inf
        tolerance = TIE * len(harness.steps)
        most = best * (1 if exact else GAP) + tolerance
        if exact or allowed(wanted, harness.steps):
            assert cost <= most, f"seed {seed}: {cost}, not {best}"
        assert not exact or cost >= best - tolerance, f"seed {seed}: {best} was overlooked"
        found += victim_set is not None
        both += victim_set is not None and len({bool(one.left) for one in victim_set.victims}) == 2
    assert found > STATES // 3
    assert not elastic or both > STATES // 24


def test_the_names_of_jobs_decide_nothing() -> None:
    stops = 0
    for seed in range(STATES):
        told = []
        for order in ((0, 1, 2, 3, 4, 5, 6, 7), (5, 2, 7, 0, 6, 3, 1, 4)):
            draw = Random(seed)
            jobs = drawn(draw, 8, cpus=True)
            names = [f"j{number}" for number in order]
            cluster = cluster_of(draw, list(zip(names, jobs, strict=True)), nodes=3)
            asked = cluster.submit("u", draw.choice((1, 2, 4)), **URGENT)
            asked += cluster.tick(seconds=1)
            stopped = stopped_for(asked, StopReason.PREEMPTED)
            told.append(sorted(names.index(name) for name in stopped))
        assert told[0] == told[1], f"seed {seed}"
        stops += len(told[0])
    assert stops > STATES // 3
