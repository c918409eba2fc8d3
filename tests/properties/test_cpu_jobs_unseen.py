"""Decisions about GPUs are equal with and without jobs that have none."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest

from gangline_scheduler.core import invariants
from gangline_scheduler.core.policy.config import ORDERS, Policy
from gangline_scheduler.core.snapshot import fingerprint
from gangline_schemas.base import Event
from gangline_schemas.events.quota import DrainAdmitted
from gangline_schemas.events.scheduling import GangAllocated
from gangline_schemas.events.workers import ExitReason, NodeJoined
from support.builders.cpu_jobs import cpu_node, cpu_spec, gpu_node, submit
from support.builders.deciding import every
from support.builders.scheduler import Cluster


class Pair:
    """The same story about GPUs for two schedulers, of which one has jobs without GPUs too."""

    def __init__(self, seed: int, order: str) -> None:
        policy = Policy(order=ORDERS[order], reserve_after=timedelta(minutes=2))
        nodes = [gpu_node(f"n{at}", 4, rack=f"r{at % 2}") for at in range(4)]
        self.plain = Cluster(*nodes, policy=policy, limit=12)
        self.mixed = Cluster(*nodes, policy=policy, limit=12)
        self.draw = random.Random(seed)
        self.number = 0
        self.mixed.give(NodeJoined(node=cpu_node("cpus", cpus=8)))

    def both(self, act: str, *args: object, **fields: object) -> None:
        for cluster in (self.plain, self.mixed):
            getattr(cluster, act)(*args, **fields)
        assert about_gpus(self.plain) == about_gpus(self.mixed)
        assert invariants.consistent(self.mixed.state) == []

    def step(self) -> None:
        draw = self.draw
        self.number += 1
        live = [name for name in self.plain.state.live if self.plain.job(name).gang]
        kind = draw.choice(("gang", "gang", "end", "end", "fail", "tick", "drain", "cpu", "cpu"))
        if kind == "gang":
            gpus = draw.choice((1, 2, 4, 6))
            least = draw.choice((None, 1))
            resources = {"gpus": gpus, "cpus_per_gpu": draw.choice((1, 2, 4))}
            if least is not None:
                resources["min_gpus"] = least
            self.both(
                "submit", f"g{self.number}", gpus, of_team=draw.choice(("nlp", "cv")),
                resources=resources, preemptible=draw.random() < 0.5,
                priority=draw.choice((5, 50)), expected_runtime_hours=draw.choice((0.1, 5)),
            )  # fmt: skip
        elif kind == "end" and live:
            name = draw.choice(live)
            self.both("start", name)
            if name in self.plain.state.live:
                self.both("exit", name)
        elif kind == "fail" and live:
            self.both("fail", draw.choice(live))
        elif kind == "tick":
            self.both("tick", draw.choice((1, 60, 600)))
        elif kind == "drain":
            name, on = f"n{draw.randrange(4)}", draw.random() < 0.5
            self.both("give", DrainAdmitted(node_id=name, drain=on, user="ada"))
        else:
            self.without_gpus()

    def without_gpus(self) -> None:
        draw, cluster = self.draw, self.mixed
        live = [*cluster.state.cpu_live]
        if live and draw.random() < 0.4:
            name = draw.choice(live)
            cluster.start(name)
            if name in cluster.state.cpu_live:
                cluster.exit(name, draw.choice((ExitReason.FINISHED, ExitReason.STOPPED)))
        else:
            wanted = cpu_spec(
                draw.choice((1, 4, 8)), draw.choice((1, 100)), draw.choice((1, 1, 3)),
                of_team=draw.choice(("nlp", "cv")), priority=draw.choice((5, 50)),
            )  # fmt: skip
            submit(cluster, f"c{self.number}", wanted)
        assert about_gpus(self.plain) == about_gpus(cluster)


def about_gpus(cluster: Cluster) -> list[Event]:
    """The decisions, without those about jobs and nodes without GPUs, and without ports."""
    found = []
    for decision, _ in cluster.log:
        event = decision.event
        if decision.subject.startswith("c"):
            continue
        if isinstance(event, GangAllocated):
            at = event.rendezvous.model_copy(update={"port": 1})
            event = event.model_copy(update={"rendezvous": at})
        found.append(event)
    return found


@pytest.mark.parametrize("order", ["fair", "drf", "short", "fifo"])
@pytest.mark.parametrize("seed", range(4))
def test_decisions_about_gpus_are_equal_with_and_without_them(seed: int, order: str) -> None:
    pair = Pair(seed, order)
    for _ in range(60):
        pair.step()
    ran = {event.job_id for event in every([d.event for d, _ in pair.mixed.log], GangAllocated)}
    assert any(name.startswith("c") for name in ran), "the story has jobs without GPUs"
    assert any(name.startswith("g") for name in ran)
    assert fingerprint(pair.mixed.replayed()) == fingerprint(pair.mixed.state)
