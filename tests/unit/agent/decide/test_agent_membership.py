"""When a node joins: at once or after its check, again after a lost lease, never while it fails."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from gangline_bus.codec import Received
from gangline_bus.decision import Tick
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.faults import NodeFailed
from gangline_schemas.events.heartbeats import GpuHealth, NodeHealth
from gangline_schemas.events.workers import NodeJoined, NodeUnfit
from gangline_worker.agent.config import AgentSettings
from gangline_worker.agent.decide.core import AgentCore
from gangline_worker.agent.decide.effects import CheckNode, Effect, Note, Publish, SendHeartbeat
from gangline_worker.agent.decide.inputs import HeartbeatAcked, Input, Leave, NodeChecked
from gangline_worker.agent.decide.keys import Moment
from gangline_worker.agent.decide.membership import AgentLimits
from gangline_worker.agent.health.fitness import FitnessLimits, unfit_for
from gangline_worker.agent.runtime.lease_guard import KeptGuard, LeaseGuard
from support.builders.agent_core import NODE, START

LIMITS = AgentLimits(heartbeat_interval_s=1.0, lease_s=10.0, check_node=True, check_again_s=30.0)
BAD = ("its disk has 0.10 GB left, and 1.00 are wanted",)


@dataclass
class Node:
    limits: AgentLimits = LIMITS
    time_s: float = 100.0
    told: list[Effect] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.core = AgentCore(NODE, self.limits)
        self.told += self.core.start(self.at)

    @property
    def at(self) -> Moment:
        return Moment(self.time_s, START + timedelta(seconds=self.time_s))

    def do(self, item: Input) -> list[Effect]:
        out = self.core.handle(item, self.at)
        self.told += out
        return [effect for effect in out if not isinstance(effect, SendHeartbeat)]

    def live(self, for_s: float, *, acked: bool = True) -> list[Effect]:
        """Ticks, and each heartbeat is acknowledged."""
        out = []
        for _ in range(int(for_s)):
            self.time_s += 1.0
            out += self.do(Tick())
            if acked:
                out += self.do(HeartbeatAcked(self.core.incarnation, self.time_s))
        return out

    def joins(self) -> list[str]:
        """The incarnations that joined."""
        events = [effect.event for effect in self.told if isinstance(effect, Publish)]
        return [event.node.incarnation for event in events if isinstance(event, NodeJoined)]


def test_a_node_that_is_not_checked_joins_at_once() -> None:
    node = Node(AgentLimits())
    assert node.joins() == ["boot"]
    assert [type(effect) for effect in node.told] == [Publish, SendHeartbeat]


def test_a_node_that_is_checked_joins_when_it_passed() -> None:
    node = Node()
    assert [type(effect) for effect in node.told] == [SendHeartbeat], "its agent lives"
    assert node.live(20) == [], "the first check runs already"
    assert not node.core.member.standing.joined
    node.do(NodeChecked(()))
    assert node.joins() == ["boot"]
    assert node.core.member.standing.joined
    assert node.live(60) == [], "one check is enough"


def test_one_that_fails_says_why_and_is_checked_again() -> None:
    node = Node()
    published, note = node.do(NodeChecked(BAD))
    assert note == Note("node.unfit", detail=BAD[0])
    assert isinstance(published, Publish)
    assert published.event == NodeUnfit(node=NODE, reasons=BAD, checked_at=node.at.utc)
    assert not published.spooled, "the disk may be what is wrong"
    assert node.core.member.standing.unfit_for == BAD
    assert node.live(29) == []
    assert node.live(1) == [CheckNode()]
    assert node.live(100) == [], "one check at a time"
    (again,) = node.do(NodeChecked(BAD))
    assert isinstance(again, Publish), "said again, but not logged again"
    assert again.identity != published.identity
    assert node.live(30) == [CheckNode()]
    assert len(node.do(NodeChecked(("its clock may be 3.0 s off",)))) == 2
    assert node.live(30) == [CheckNode()]
    node.do(NodeChecked(()))
    assert node.joins() == ["boot"]
    assert node.core.member.standing.unfit_for == ()


def test_one_that_was_cut_off_is_checked_before_it_joins_again() -> None:
    node = Node()
    node.do(NodeChecked(()))
    node.live(12, acked=False)
    assert not node.core.member.standing.joined
    node.live(300, acked=False)
    assert node.told.count(CheckNode()) == 0, "nobody would hear of it"
    assert node.live(5) == [CheckNode()]
    assert node.joins() == ["boot"]
    node.do(NodeChecked(()))
    assert node.joins() == ["boot", "boot.1"]


def test_one_that_passes_while_it_is_cut_off_joins_when_it_is_heard() -> None:
    node = Node()
    node.live(11, acked=False)
    assert node.do(NodeChecked(())) == []
    assert node.joins() == []
    node.live(1)
    assert node.joins() == ["boot"]


def test_one_that_leaves_does_not_join_any_more() -> None:
    node = Node()
    node.do(Leave("SIGTERM", 1.0))
    node.do(NodeChecked(()))
    assert node.joins() == []
    assert node.core.gone


def reading(**health: object) -> NodeHealth:
    return NodeHealth.model_validate({"read_at": START, **health})


def test_what_a_reading_must_say() -> None:
    limits = FitnessLimits(disk_free_gb=1, memory_free_gb=0.5, clock_error_s=1)
    well = reading(disk_free_gb=1, memory_available_gb=0.5, clock_error_s=1)
    assert unfit_for(well, limits) == ()
    assert unfit_for(reading(), limits) == (), "what is not known counts for nothing"
    ill = reading(
        gpus=(GpuHealth(index=0), GpuHealth(index=1, reset_needed=True)),
        disk_free_gb=0.9,
        memory_available_gb=0.4,
        clock_error_s=1.5,
    )
    assert unfit_for(ill, limits) == (
        "GPU 1 needs a reset for its memory",
        "its disk has 0.90 GB left, and 1.00 are wanted",
        "its memory has 0.40 GB left, and 0.50 are wanted",
        "its clock may be 1.5 s off",
    )


@pytest.mark.parametrize(("lease_s", "timeout_s"), [("48.1", "60"), ("1", "60"), ("", "1.2")])
def test_a_lease_that_does_not_end_before_others_take_over_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    lease_s: str,
    timeout_s: str,
) -> None:
    monkeypatch.setenv("GANGLINE_STORE_URL", "file:///s")
    if lease_s:
        monkeypatch.setenv("GANGLINE_LEASE_S", lease_s)
    monkeypatch.setenv("GANGLINE_HEARTBEAT_TIMEOUT_S", timeout_s)
    with pytest.raises(SystemExit):
        AgentSettings.load()
    assert "leave lease_s out for 0.75 of the timeout" in capsys.readouterr().err
    monkeypatch.setenv("GANGLINE_LEASE_S", "48")
    monkeypatch.setenv("GANGLINE_HEARTBEAT_TIMEOUT_S", "60")
    assert AgentSettings.load().lease == 48


def test_ranks_of_an_agent_that_stands_still_are_killed_before_others_take_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GANGLINE_STORE_URL", "file:///s")
    assert AgentSettings.load().guard_slack_s == 2.0
    monkeypatch.setenv("GANGLINE_HEARTBEAT_TIMEOUT_S", "4")
    settings = AgentSettings.load()
    assert settings.lease + settings.guard_slack_s == 3.5
    reading, writing = os.pipe()
    process = subprocess.Popen(["sleep", "60"])
    try:
        guard = LeaseGuard("/nowhere", 0, settings.guard_slack_s)
        guard.adopt(KeptGuard(process.pid, writing))
        guard.extend(100.0)
        assert float(os.read(reading, 100)) == 100.5
    finally:
        process.kill()
        process.wait()
        os.close(reading)
        os.close(writing)


def told_forgotten(incarnation: str) -> Received:
    event = NodeFailed(node_id=NODE.node_id, incarnation=incarnation, reason="forgotten")
    return Received(Envelope("e1", "/faults", START, NODE.node_id, event), "t", 0, 0)


def test_a_node_that_nobody_knows_any_more_joins_again() -> None:
    node = Node(AgentLimits(lease_s=10.0))
    node.live(3)
    node.do(told_forgotten("boot"))
    node.live(2)
    assert node.joins() == ["boot", "boot.1"]
    node.do(told_forgotten("boot"))
    node.live(2)
    assert node.joins() == ["boot", "boot.1"]
