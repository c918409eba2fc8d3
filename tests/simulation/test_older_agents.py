"""Agents of two releases before, with services of this version and the next in every order.

An older agent announces its release, writes events without the newer fields, and reads what the
services decided by its own schema: newer types it skips, newer fields it ignores.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import ClassVar

import pytest

from gangline_bus import codec
from gangline_bus.codec import UndecodableError, encode, receive
from gangline_bus.ports import TopicPartition
from gangline_scheduler.core.decide import Scheduler
from gangline_scheduler.core.policy.configured import Limits
from gangline_schemas.base import Event
from gangline_schemas.catalog import Topic
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.heartbeats import WorkerHeartbeat
from gangline_schemas.events.scheduling import GangAllocated, NodeAssignment
from gangline_schemas.events.workers import (
    ExitReason,
    NodeInfo,
    NodeJoined,
    WorkerExited,
    WorkerStarted,
)
from simulation import test_rolling_upgrade
from simulation.test_rolling_upgrade import MAKE, NEXT, ORDERS, PAUSE, THIS, NextScheduler, World

OLDER = "0.0.2"
NEWER_FIELDS = {
    "node.joined": {"labels", "isolation", "copies_port"},
    "worker.heartbeat": {"joined"},
    "worker.exited": {"out_of_memory", "message", "last_step", "damaged_object", "left_out"},
}
"""What an older agent does not write, by type."""


class OlderGangAllocated(Event):
    """As an older agent knows it."""

    type: ClassVar[str] = "gang.allocated"
    job_id: str
    attempt: int
    nodes: tuple[NodeAssignment, ...]


@contextmanager
def older_schema() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codec, "event_types", lambda: {"gang.allocated": OlderGangAllocated})
        yield


class OlderAgents(World):
    """All nodes have older agents, whose ranks end well at once."""

    def __init__(self) -> None:
        self.joined: dict[str, str] = {}
        self.nodes: dict[str, NodeInfo] = {}
        self.release = OLDER
        self.ran: list[str] = []
        self.skipped = 0
        self._place = TopicPartition(Topic.SCHEDULING, 0)
        self._reads: int = 0
        super().__init__()

    def _say(self, topic: Topic, subject: str, event: Event) -> None:
        if isinstance(event, NodeJoined):
            self.joined[subject] = event.node.incarnation
            self.nodes[subject] = event.node.model_copy(update={"release": self.release})
            event = NodeJoined(node=self.nodes[subject])
        if topic in {Topic.WORKERS, Topic.HEARTBEATS}:
            self._write(topic, subject, event)
        else:
            super()._say(topic, subject, event)

    def _write(self, topic: Topic, subject: str, event: Event) -> None:
        """Without what an older agent does not know."""
        name = f"{event.type}{subject}{self.now}{event.data()}"
        record = encode(Envelope(name[:200], "/agent", self.now, subject, event), topic=topic)
        data = json.loads(record.value)
        for part in (data, data.get("node", {})):
            for field in NEWER_FIELDS.get(event.type, ()):
                part.pop(field, None)
        self.user.writer().send(replace(record, value=json.dumps(data).encode()))

    def reload(self, release: str) -> None:
        """All agents are upgraded in place: their gangs and incarnations stay."""
        self.release = release
        for node_id, node in self.nodes.copy().items():
            self._say(Topic.WORKERS, node_id, NodeJoined(node=node))

    def outdated(self) -> list[str]:
        """The nodes that were cordoned since their agents are too old, in order."""
        data = [json.loads(record.value) for record in self.broker.dump(Topic.SCHEDULING)]
        return [event["node_id"] for event in data if event.get("reason") == "outdated"]

    def _cycle(self) -> None:
        super()._cycle()
        for allocated in self._allocated():
            self._run(allocated)
        for node_id, incarnation in self.joined.items():
            beat = WorkerHeartbeat(
                node_id=node_id, incarnation=incarnation, sequence=1, sent_at=self.now
            )
            self._say(Topic.HEARTBEATS, node_id, beat)

    def _allocated(self) -> list[OlderGangAllocated]:
        reader = self.user.reader("agent")
        reader.assign({self._place: self._reads})
        records = reader.poll(1000, 0.0)
        self._reads = reader.positions()[self._place]
        reader.close()
        found = []
        with older_schema():
            for record in records:
                try:
                    data = receive(record).envelope.data
                except UndecodableError:
                    self.skipped += 1
                else:
                    assert isinstance(data, OlderGangAllocated)
                    found.append(data)
        return found

    def _run(self, gang: OlderGangAllocated) -> None:
        assert gang.job_id not in self.ran, "it ran already"
        self.ran.append(gang.job_id)
        for node in gang.nodes:
            for rank in range(node.first_rank, node.first_rank + len(node.gpus)):
                where = {"job_id": gang.job_id, "attempt": gang.attempt, "rank": rank}
                where |= {"node_id": node.node_id, "incarnation": self.joined[node.node_id]}
                self._say(Topic.WORKERS, gang.job_id, WorkerStarted(**where, pid=7))
                exited = WorkerExited(**where, reason=ExitReason.FINISHED, exit_code=0)
                self._say(Topic.WORKERS, gang.job_id, exited)


def test_an_allocation_has_what_an_older_agent_reads() -> None:
    assert OlderGangAllocated.model_fields.keys() < GangAllocated.model_fields.keys()


@pytest.mark.parametrize("order", ORDERS, ids=",".join)
def test_jobs_run_on_older_agents_whatever_is_upgraded_first(order: tuple[str, ...]) -> None:
    world = OlderAgents()
    world.upgrade_others()
    for part in order:
        world.start(part, NEXT)
        world.live()
        world.check()
    world.live()
    assert world.enabled(), "it does not concern agents"
    world.live()
    assert world.new_on_the_wire() == {"type", "field", "value"}
    assert world.ran == world.jobs, "each job ran once"
    assert {job.outcome for job in world.loops["quota"][0].state.ended.values()} == {"succeeded"}
    assert len(world.loops["quota"][0].state.ended) == len(world.jobs)
    assert world.skipped > len(world.jobs), "they read a log with types that they do not know"
    nodes = world.loops["scheduler"][0].state.nodes.values()
    assert {node.info.release for node in nodes} == {OLDER}


def test_what_concerns_agents_waits_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_rolling_upgrade, "PAUSE", replace(PAUSE, agents=True))
    world = OlderAgents()
    world.upgrade_others()
    for part in ORDERS[0]:
        world.start(part, NEXT)
        world.live()
    world.live()
    assert not world.enabled()
    assert world.new_on_the_wire() == set()
    assert world.ran == world.jobs


@pytest.mark.parametrize("when", ["they join", "the scheduler is upgraded"])
def test_agents_that_are_too_old_take_no_gangs_until_they_reload(
    when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    strict = partial(Scheduler, Limits(oldest_agents=THIS))
    if when == "they join":
        monkeypatch.setitem(MAKE, "scheduler", (strict, NextScheduler))
    world = OlderAgents()
    if when != "they join":
        world.live()
        assert world.ran == world.jobs
        monkeypatch.setitem(MAKE, "scheduler", (strict, NextScheduler))
        world.start("scheduler", THIS)
        world._cycle()
    ran = len(world.ran)
    for _ in range(4):
        world.live()
        world.check()
    assert len(world.ran) == ran < len(world.jobs)
    assert sorted(world.outdated()) == sorted(world.nodes), "each node once"
    world.reload(THIS)
    world.live()
    world.check()
    assert sorted(world.ran) == sorted(world.jobs)
    assert sorted(world.outdated()) == sorted([*world.nodes][:-1])
