"""Lemon nodes: those that fail again and again take no new gangs; unlucky ones do."""

from __future__ import annotations

from datetime import timedelta

from gangline_faults.core.decide import FaultDecider
from gangline_faults.core.model import Liveness
from gangline_faults.core.policy.limits import FaultLimits
from gangline_faults.core.snapshot import fingerprint
from gangline_faults.core.state import FaultState
from gangline_schemas.base import Event
from gangline_schemas.events.faults import GangFailed, NodeDistrusted
from gangline_schemas.events.workers import NodeLeaving
from support.builders.faults import allocated, beat, ended, exited, joined
from support.harnesses.decider_run import DeciderRun

LIMITS = FaultLimits(distrust_after=3, distrust_window_s=3600)
FULL = "OSError: [Errno 28] No space left on device"
ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"


def cluster(nodes: int = 10, limits: FaultLimits = LIMITS) -> DeciderRun[FaultState, Liveness]:
    run = DeciderRun(FaultDecider(limits=limits), fingerprint)
    for number in range(1, nodes + 1):
        run.feed(joined(f"n{number}"))
    return run


def fail(
    run: DeciderRun[FaultState, Liveness],
    job: int,
    message: str,
    node: int = 1,
    after_s: float = 300,
) -> list[Event]:
    """A new job runs on that node alone and fails there; what was said of nodes."""
    run.now += timedelta(seconds=after_s)
    name = f"job-{job}"
    run.feed(allocated(job_id=name, nodes=(f"n{node}",)))
    said = run.feed(exited(node - 1, job_id=name, code=1, message=message))
    assert any(isinstance(event, GangFailed) for event in said)
    run.feed(ended(name))
    return [event for event in said if isinstance(event, NodeDistrusted)]


def test_failures_count_after_a_clock_that_was_ahead_went_back() -> None:
    run = cluster()
    assert fail(run, 1, FULL) == []
    assert fail(run, 2, FULL, after_s=-7200) == []
    assert [event.node_id for event in fail(run, 3, FULL)] == ["n1"]


def test_the_third_failure_of_a_node_is_one_too_many() -> None:
    run = cluster()
    first = run.now + timedelta(seconds=300)
    assert fail(run, 1, FULL) == []
    assert fail(run, 2, FULL) == []
    run.take_over()
    assert fail(run, 3, FULL) == [
        NodeDistrusted(
            node_id="n1",
            incarnation="a",
            failures=3,
            jobs=3,
            since=first,
            distrusted_at=run.now,
        )
    ]
    assert fail(run, 4, FULL) == []  # it counts from one again


def test_old_failures_are_forgotten() -> None:
    run = cluster()
    for job in range(1, 8):
        assert fail(run, job, FULL, after_s=1801) == []


def test_one_job_alone_does_not_spoil_a_node_but_a_broken_gpu_does() -> None:
    run = cluster()
    for message, expected in ((FULL, 0), (ECC, 1)):
        for attempt in (1, 2, 3):
            run.now += timedelta(seconds=300)
            job = f"job-{expected}"
            run.feed(allocated(job_id=job, attempt=attempt, nodes=(f"n{expected + 1}",)))
            run.feed(exited(expected, job_id=job, attempt=attempt, code=1, message=message))
        assert len(run.events(NodeDistrusted)) == expected


def test_what_does_not_name_the_node_does_not_count() -> None:
    run = cluster()
    for job in range(1, 8):
        assert fail(run, job, "ValueError: x") == []
        assert fail(run, job + 10, "requests.exceptions.ConnectionError: x") == []


def test_a_node_that_takes_many_gangs_along_failed_once() -> None:
    run = cluster()
    for job in range(1, 8):
        assert fail(run, job, ECC, after_s=1) == []


def test_a_node_whose_agent_starts_again_is_not_to_blame() -> None:
    run = cluster()
    failed = []
    for number in range(1, 8):
        run.now += timedelta(seconds=300)
        failed += run.feed(joined("n1", f"i{number}"))
        run.feed(allocated(f"job-{number}", nodes=("n1",), incarnation=f"i{number}"))
    assert len([event for event in failed if isinstance(event, GangFailed)]) == 6
    assert run.events(NodeDistrusted) == []


def test_when_many_fail_only_a_tenth_is_kept_back() -> None:
    run = cluster(nodes=20)
    for round_ in range(3):
        for node in range(1, 6):
            fail(run, 10 * round_ + node, FULL, node=node, after_s=70)
    assert {event.data()["node_id"] for event in run.events(NodeDistrusted)} == {"n1", "n2"}


def test_of_nodes_that_fail_in_one_moment_one_is_kept_back_and_once() -> None:
    run = cluster(nodes=20, limits=FaultLimits(distrust_after=1))
    run.tick()
    for node in range(1, 6):
        run.feed(allocated(f"job-{node}", nodes=(f"n{node}",)))
    run.feed(allocated("job-6", nodes=("n1",)))
    for _ in range(13):
        for node in range(6, 21):
            run.signal(beat(f"n{node}"))
        run.tick(5)
    assert len(run.events(GangFailed)) == 6
    assert [event.data()["node_id"] for event in run.events(NodeDistrusted)] == ["n1"]


def test_nodes_that_are_gone_for_good_do_not_count_among_all() -> None:
    run = cluster(nodes=30)
    for node in range(10, 31):
        run.feed(NodeLeaving(node_id=f"n{node}", incarnation="a", reason="spot"))
    for job in range(1, 8):
        assert fail(run, job, ECC) == []


def test_a_small_cluster_keeps_all_its_nodes() -> None:
    run = cluster(nodes=9)
    for job in range(1, 8):
        assert fail(run, job, ECC) == []


def test_it_can_be_turned_off() -> None:
    run = cluster(limits=FaultLimits(distrust_after=0))
    for job in range(1, 8):
        assert fail(run, job, ECC) == []
