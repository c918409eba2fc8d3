"""What a node's health tells beforehand: its jobs save, and a broken node takes no new gangs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from gangline_faults.core.decide import FaultDecider
from gangline_faults.core.model import Liveness
from gangline_faults.core.policy.limits import FaultLimits
from gangline_faults.core.policy.trends import TrendLimits
from gangline_faults.core.snapshot import fingerprint
from gangline_faults.core.state import FaultState
from gangline_schemas.base import Event
from gangline_schemas.events.faults import CheckpointRequested, NodeDistrusted
from gangline_schemas.events.heartbeats import GpuHealth, NodeHealth, WorkerHeartbeat
from gangline_schemas.events.scheduling import NodeCordoned
from support.builders.faults import allocated, exited, joined
from support.harnesses.decider_run import DeciderRun


class Cluster:
    """`job-1` runs on n1 and n2, `job-2` on n2 alone; each call of `reads` is a new reading."""

    def __init__(self, nodes: int = 4, trends: TrendLimits | None = None) -> None:
        decider = FaultDecider(limits=FaultLimits(), trends=trends or TrendLimits())
        self.run: DeciderRun[FaultState, Liveness] = DeciderRun(decider, fingerprint)
        for number in range(1, nodes + 1):
            self.run.feed(joined(f"n{number}"))
        self.run.feed(allocated("job-1", nodes=("n1", "n2")))
        self.run.feed(allocated("job-2", nodes=("n2",)))
        self.run.tick()

    def reads(
        self, node_id: str = "n1", after_s: float = 10.0, incarnation: str = "a", **health: Any
    ) -> list[Event]:
        """What follows from a reading; `gpu` gives fields of GPU 0."""
        gpu = health.pop("gpu", None)
        self.run.now += timedelta(seconds=after_s)
        reading = NodeHealth(
            read_at=self.run.now,
            gpus=() if gpu is None else (GpuHealth(index=0, **gpu),),
            **health,
        )
        for other in sorted(self.run.state.nodes):
            self.beats(other, None)
        self.beats(node_id, reading, incarnation)
        return self.run.tick()

    def beats(self, node_id: str, reading: NodeHealth | None, incarnation: str = "a") -> None:
        self.run.signal(
            WorkerHeartbeat(
                node_id=node_id,
                incarnation=incarnation,
                sequence=0,
                sent_at=self.run.now,
                health=reading,
            )
        )


def asked(said: list[Event]) -> dict[str, str]:
    """Which gangs must save, and why."""
    return {event.job_id: event.reason for event in said if isinstance(event, CheckpointRequested)}


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ({"gpu": {"ecc_uncorrected": 1}}, {"gpu": {"ecc_uncorrected": 3}}, "2 uncorrectable ECC"),
        ({"memory_uncorrected": 0}, {"memory_uncorrected": 1}, "memory had 1 uncorrectable"),
        ({"gpu": {}}, {"gpu": {"reset_needed": True}}, "needs a reset"),
        ({"gpu": {}}, {"gpu": {"xids": 1, "last_xid": 79}}, "Xid 79"),
        ({"gpu": {}}, {"gpu": {"xids": 1, "last_xid": 63}}, "Xid 63"),
        ({"gpu": {"ecc_corrected": 7}}, {"gpu": {"ecc_corrected": 107}}, "100 corrected ECC"),
        ({"gpu": {"nvlink_errors": 0}}, {"gpu": {"nvlink_errors": 500}}, "500 NVLink errors"),
        ({"gpu": {}}, {"gpu": {"slowed_by": ("hw_thermal",)}}, "slowed down by hw_thermal"),
        ({"disk_write_errors": 1}, {"disk_write_errors": 2}, "disk refused 1 write"),
        ({"disk_free_gb": 1.5}, {"disk_free_gb": 0.9}, "disk has 0.9 GB left"),
        ({"memory_available_gb": 0.6}, {"memory_available_gb": 0.4}, "memory has 0.4 GB left"),
        ({"clock_error_s": 0.1}, {"clock_error_s": 1.5}, "clock may be 1.5 s off"),
    ],
)
def test_jobs_of_a_node_that_tells_of_a_failure_to_come_are_asked_to_save(
    before: dict[str, Any], after: dict[str, Any], why: str
) -> None:
    cluster = Cluster()
    assert cluster.reads("n2", **before) == []
    said = asked(cluster.reads("n2", **after))
    assert said.keys() == {"job-1", "job-2"}
    assert why in said["job-1"]
    assert said["job-1"].startswith("node n2: ")
    assert asked(cluster.reads("n2", after_s=700.0, **after)) == {}, "it is no news any more"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"gpu": {"ecc_corrected": 7}}, {"gpu": {"ecc_corrected": 20}}),
        ({"gpu": {"ecc_uncorrected": 5}}, {"gpu": {"ecc_uncorrected": 0}}),  # the driver was loaded
        ({"gpu": {}}, {"gpu": {"xids": 1, "last_xid": 31}}),  # a program's own
        ({"gpu": {}}, {"gpu": {"xids": 1, "last_xid": 94}}),  # contained
        ({"gpu": {}}, {"gpu": {"slowed_by": ("sw_thermal",)}}),
        ({}, {"gpu": {"ecc_uncorrected": 9}}),  # not seen before: since an unknown time
        ({}, {"clock_synced": False}),
        ({}, {}),
    ],
)
def test_what_is_no_sign(before: dict[str, Any], after: dict[str, Any]) -> None:
    cluster = Cluster()
    assert cluster.reads(**before) == []
    assert cluster.reads(**after) == []


def test_heat_must_last_and_a_gpu_may_have_a_lower_limit() -> None:
    cluster = Cluster()
    hot, warm = {"temperature_c": 88.0, "slowdown_c": 87.0}, {"temperature_c": 88.0}
    assert [asked(cluster.reads(gpu=hot)) for _ in range(2)] == [{}, {}]
    assert asked(cluster.reads(gpu=warm)) == {}
    assert [asked(cluster.reads(gpu=hot)) for _ in range(2)] == [{}, {}]
    assert asked(cluster.reads(gpu=hot)) == {"job-1": "node n1: GPU 0 stays at 88 C"}


def test_mended_errors_count_within_their_time() -> None:
    cluster = Cluster()
    cluster.reads(gpu={"ecc_corrected": 0})
    assert cluster.reads(after_s=1800, gpu={"ecc_corrected": 60}) == []
    assert cluster.reads(after_s=1800, gpu={"ecc_corrected": 99}) == []  # the count restarts
    assert cluster.reads(after_s=1800, gpu={"ecc_corrected": 198}) == []
    assert asked(cluster.reads(after_s=60, gpu={"ecc_corrected": 199})).keys() == {"job-1"}


def test_a_job_is_asked_so_often_at_most_also_after_a_takeover() -> None:
    cluster = Cluster()
    cluster.reads("n1", disk_write_errors=0)
    cluster.reads("n2", disk_write_errors=0)
    assert asked(cluster.reads("n1", disk_write_errors=1)).keys() == {"job-1"}
    assert cluster.run.tick(1.0) == [], "the reading is known"
    assert asked(cluster.reads("n2", disk_write_errors=1)).keys() == {"job-2"}
    cluster.run.take_over()
    cluster.run.tick()
    cluster.reads("n1", disk_write_errors=1)
    assert asked(cluster.reads("n1", disk_write_errors=2)) == {}
    assert asked(cluster.reads("n1", after_s=600, disk_write_errors=3)).keys() == {"job-1"}


def test_a_sign_is_no_news_after_a_clock_that_was_ahead_went_back() -> None:
    cluster = Cluster()
    cluster.reads("n1", disk_write_errors=0)
    assert asked(cluster.reads("n1", disk_write_errors=1)).keys() == {"job-1"}
    cluster.run.now -= timedelta(hours=1)
    assert asked(cluster.run.tick()) == {}


def test_it_can_be_turned_off() -> None:
    cluster = Cluster(trends=TrendLimits(save_every_s=0))
    cluster.reads(disk_free_gb=5)
    assert asked(cluster.reads(disk_free_gb=0.1)) == {}


def drained(*, move_jobs: bool = True, incarnation: str = "a") -> NodeCordoned:
    return NodeCordoned(node_id="n2", incarnation=incarnation, reason="drain", move_jobs=move_jobs)


DRAINED = dict.fromkeys(("job-1", "job-2"), "node n2 is being drained")


def test_gangs_on_a_draining_node_are_asked_to_save_once_for_each_drain() -> None:
    cluster = Cluster(trends=TrendLimits(save_every_s=0))
    said = cluster.run.feed(drained())
    assert asked(said) == DRAINED
    assert {e.node_id for e in said if isinstance(e, CheckpointRequested)} == {None}, "no sign"
    assert cluster.run.feed(drained()) == [], "it came twice"
    cluster.run.now += timedelta(seconds=11)
    assert asked(cluster.run.feed(drained())) == DRAINED, "it was undone and begun anew"


def test_a_drain_and_a_sign_do_not_hold_each_other_back() -> None:
    cluster = Cluster()
    cluster.reads("n2", disk_write_errors=0)
    assert asked(cluster.run.feed(drained())) == DRAINED
    assert asked(cluster.reads("n2", disk_write_errors=1)).keys() == {"job-1", "job-2"}
    assert asked(cluster.run.feed(drained())) == DRAINED, "who sees the sign drains the node"
    assert asked(cluster.reads("n2", disk_write_errors=2)) == {}, "a sign so soon after a sign"


@pytest.mark.parametrize(
    "cordon",
    [
        drained(move_jobs=False),
        drained(incarnation="older"),
        NodeCordoned(node_id="n2", incarnation="a", reason="leaving"),
        NodeCordoned(node_id="n3", incarnation="a", reason="drain", move_jobs=True),
    ],
    ids=["stays", "older", "leaving", "idle"],
)
def test_other_cordons_ask_nobody(cordon: NodeCordoned) -> None:
    assert Cluster().run.feed(cordon) == []


def test_a_repeated_reading_and_one_of_an_older_incarnation_say_nothing() -> None:
    cluster = Cluster()
    cluster.reads(gpu={"ecc_uncorrected": 0})
    reading = NodeHealth(read_at=cluster.run.now, gpus=(GpuHealth(index=0, ecc_uncorrected=4),))
    cluster.beats("n1", reading)
    assert cluster.run.tick() == []
    assert cluster.reads(incarnation="old", gpu={"ecc_uncorrected": 4}) == []


def test_a_failed_gang_is_not_asked() -> None:
    cluster = Cluster()
    cluster.reads("n2", disk_write_errors=0)
    cluster.run.feed(exited(0, job_id="job-1", code=1, message="ValueError"))
    assert asked(cluster.reads("n2", disk_write_errors=1)).keys() == {"job-2"}


BROKEN = ({"gpu": {"ecc_uncorrected": 0}}, {"gpu": {"ecc_uncorrected": 1}})


def distrusted(said: list[Event]) -> list[str]:
    return [event.node_id for event in said if isinstance(event, NodeDistrusted)]


def test_a_broken_node_takes_no_new_gangs_and_says_why() -> None:
    cluster = Cluster()
    cluster.reads("n2", **BROKEN[0])
    said = cluster.reads("n2", **BROKEN[1])
    (event,) = [event for event in said if isinstance(event, NodeDistrusted)]
    assert (event.node_id, event.incarnation, event.jobs) == ("n2", "a", 2)
    assert event.reason == "GPU 0 had 1 uncorrectable ECC error(s)"
    assert cluster.run.tick(1.0) == [], "said once"


@pytest.mark.parametrize("xid", [46, 62, 79, 119, 120, 140, 143, 158])
def test_a_gpu_that_needs_a_reset_takes_no_new_gangs(xid: int) -> None:
    cluster = Cluster()
    cluster.reads("n2", gpu={})
    assert distrusted(cluster.reads("n2", gpu={"xids": 1, "last_xid": xid})) == ["n2"]


@pytest.mark.parametrize("xid", [31, 45, 63, 74, 92, 94])
def test_other_xids_leave_the_node_in_use(xid: int) -> None:
    cluster = Cluster()
    cluster.reads("n2", gpu={})
    assert distrusted(cluster.reads("n2", gpu={"xids": 1, "last_xid": xid})) == []


def test_at_most_half_of_the_nodes_are_distrusted_so() -> None:
    cluster = Cluster(nodes=4)
    for node_id in ("n1", "n2", "n3", "n4"):
        cluster.reads(node_id, **BROKEN[0])
    found = [distrusted(cluster.reads(node_id, **BROKEN[1])) for node_id in ("n1", "n2", "n3")]
    assert found == [["n1"], ["n2"], []]


def test_a_lone_node_is_kept() -> None:
    cluster = Cluster(nodes=1)
    cluster.reads(**BROKEN[0])
    assert distrusted(cluster.reads(**BROKEN[1])) == []
