"""Notices of running gangs: troubles of their training, and ranks that are slow."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from datetime import timedelta

import pytest

from gangline_bus.decision import Tick
from gangline_faults.core.decide import FaultDecider
from gangline_faults.core.model import MOST_SCORE, Liveness
from gangline_faults.core.notices import TROUBLES_LIMIT
from gangline_faults.core.policy.limits import FaultLimits
from gangline_faults.core.policy.timing import Timing
from gangline_faults.core.snapshot import fingerprint
from gangline_faults.core.state import FaultState
from gangline_faults.service.config import FaultSettings
from gangline_schemas.base import Event
from gangline_schemas.events.faults import GangTroubled, NodeDistrusted, WorkerStraggling
from gangline_schemas.events.heartbeats import (
    GangStatus,
    RankActivity,
    RankStatus,
    Trouble,
    TroubleKind,
)
from support.builders.faults import allocated, beat, ended, joined
from support.harnesses.decider_run import DeciderRun

NODES = ("n1", "n2", "n3", "n4")
EVEN = dict.fromkeys(NODES, 0.2)


def cluster(
    limits: FaultLimits | None = None, nodes: tuple[str, ...] = NODES
) -> DeciderRun[FaultState, Liveness]:
    run = DeciderRun(FaultDecider(Timing(), limits or FaultLimits()), fingerprint)
    for node_id in nodes:
        run.feed(joined(node_id))
    run.tick()
    return run


def gang(nodes: tuple[str, ...] = NODES) -> DeciderRun[FaultState, Liveness]:
    run = cluster(nodes=nodes)
    run.feed(allocated(nodes=nodes))
    return run


def say(
    run: DeciderRun[FaultState, Liveness],
    busy_s: Mapping[str, float | None],
    *,
    job_id: str = "job-1",
    activity: RankActivity | None = RankActivity.TRAINING,
    trouble: Trouble | None = None,
) -> None:
    """Each node says once how long its rank works in a step."""
    for rank, (node_id, busy) in enumerate(busy_s.items()):
        status = RankStatus(
            rank=rank, pid=1, step=20, activity=activity, quiet_s=0.1, step_p99_s=0.5,
            busy_s=busy, trouble=trouble,
        )  # fmt: skip
        told = GangStatus(job_id=job_id, attempt=1, ranks=(status,))
        run.signal(beat(node_id).model_copy(update={"gangs": (told,)}))


def second(
    run: DeciderRun[FaultState, Liveness], busy_s: Mapping[str, float | None], **more: object
) -> list[Event]:
    """Each node says it once, then comes a Tick."""
    say(run, busy_s, **more)  # type: ignore[arg-type]
    return run.tick(1)


def seconds(
    run: DeciderRun[FaultState, Liveness],
    count: int,
    busy_s: Mapping[str, float | None],
    **more: object,
) -> list[Event]:
    return [event for _ in range(count) for event in second(run, busy_s, **more)]


def test_a_rank_that_is_slower_than_its_gang_is_named_once() -> None:
    run = gang()
    slow = EVEN | {"n3": 0.4}
    assert seconds(run, 30, slow) == []
    (event,) = second(run, slow)
    assert isinstance(event, WorkerStraggling)
    assert (event.rank, event.node_id, event.against) == (2, "n3", "gang")
    assert (event.relative, event.individual, event.host) == (0.5, 1.0, 0.5)
    assert event.message == (
        "rank 2 on n3 works 0.400 s a step before it waits for others; its gang's median is 0.200 s"
    )
    assert (event.noted_at - event.since).total_seconds() == 30
    assert not event.blamed
    run.take_over()
    assert seconds(run, 60, slow) == []


def test_nobody_is_named_in_an_even_gang() -> None:
    uneven = {"n1": 0.2, "n2": 0.21, "n3": 0.25, "n4": 0.28}
    assert seconds(gang(), 90, uneven) == []


@pytest.mark.parametrize(
    "busy_s",
    [
        {"n1": 0.001, "n2": 0.001, "n3": 0.004, "n4": 0.001},  # less than anybody notices
        {"n1": 0.2, "n2": 0.2, "n3": None, "n4": 0.2},  # it does not tell
    ],
)
def test_who_holds_nobody_up_is_no_straggler(busy_s: dict[str, float | None]) -> None:
    assert seconds(gang(), 60, busy_s) == []


def test_a_short_spell_is_forgiven() -> None:
    run = gang()
    slow = EVEN | {"n3": 0.4}
    for _ in range(5):
        assert seconds(run, 29, slow) == []
        assert second(run, EVEN) == []


def test_of_two_ranks_the_quicker_is_the_measure() -> None:
    run = gang(("n1", "n2"))
    events = seconds(run, 40, {"n1": 0.2, "n2": 0.5})
    assert [event.node_id for event in events if isinstance(event, WorkerStraggling)] == ["n2"]


def test_a_rank_that_becomes_slower_than_itself_is_named() -> None:
    run = gang()
    quick = EVEN | {"n1": 0.1}
    assert seconds(run, 5, quick) == []
    (event,) = seconds(run, 40, EVEN)
    assert isinstance(event, WorkerStraggling)
    assert (event.node_id, event.against, event.usual_s) == ("n1", "itself", 0.1)
    assert event.individual == 0.5
    assert "its own best was 0.100 s" in event.message


def test_when_the_work_becomes_more_for_all_nobody_straggles() -> None:
    run = gang()
    assert seconds(run, 5, EVEN) == []
    assert seconds(run, 60, dict.fromkeys(NODES, 0.6)) == []


def test_while_ranks_save_or_evaluate_nobody_is_judged() -> None:
    slow = EVEN | {"n3": 0.4}
    assert seconds(gang(), 60, slow, activity=RankActivity.EVALUATING) == []


def test_a_rank_alone_has_nobody_to_hold_up() -> None:
    run = gang(("n1",))
    assert seconds(run, 5, {"n1": 0.1}) == []
    assert seconds(run, 60, {"n1": 0.4}) == []


def test_a_node_of_many_stragglers_is_distrusted_only_if_configured() -> None:
    nodes = tuple(f"n{number}" for number in range(1, 12))
    for blamed in (False, True):
        limits = FaultLimits(distrust_after=2, stragglers_blamed=blamed)
        run = cluster(limits, nodes)
        said: list[Event] = []
        for number in range(1, 3):
            job_id = f"job-{number}"
            run.feed(allocated(job_id=job_id, nodes=NODES))
            said += seconds(run, 70, EVEN | {"n3": 0.4}, job_id=job_id)
            run.feed(ended(job_id))
        named = [event.blamed for event in said if isinstance(event, WorkerStraggling)]
        assert named == [blamed, blamed]
        lemons = [event.node_id for event in said if isinstance(event, NodeDistrusted)]
        assert lemons == (["n3"] if blamed else [])
        run.take_over()


def spike(step: int, kind: TroubleKind = TroubleKind.LOSS_SPIKE) -> Trouble:
    return Trouble(kind=kind, step=step, message=f"the loss leapt up in step {step}")


def test_a_trouble_is_told_once_whoever_tells_of_it() -> None:
    run = gang()
    (event,) = second(run, EVEN, trouble=spike(40))
    assert isinstance(event, GangTroubled)
    assert (event.rank, event.node_id, event.step) == (0, "n1", 40)
    assert event.message == "the loss leapt up in step 40"
    assert second(run, EVEN, trouble=spike(40)) == []
    run.take_over()
    run.tick()
    assert second(run, EVEN, trouble=spike(40)) == []
    assert len(second(run, EVEN, trouble=spike(41))) == 1
    assert len(second(run, EVEN, trouble=spike(41, TroubleKind.NOT_FINITE))) == 1


def test_a_gang_in_endless_trouble_fills_no_log() -> None:
    run = gang()
    events = [event for step in range(100) for event in second(run, EVEN, trouble=spike(step))]
    assert len(events) == TROUBLES_LIMIT


def test_the_settings_reach_the_policy() -> None:
    settings = FaultSettings(straggler_after_s=5, straggler_below=0.9, stragglers_blamed=True)
    timing = settings.timing()
    assert (timing.straggler_after_s, timing.straggler_below) == (5, 0.9)
    assert settings.limits().stragglers_blamed
    assert not FaultSettings().stragglers_blamed


def test_work_below_what_a_clock_can_measure_is_no_measure_of_others() -> None:
    """A program says what it likes of itself: its gang's median is not divided by nothing."""
    run = gang()
    assert seconds(run, 40, {"n1": 1.0, "n2": 1.0, "n3": 10.0, "n4": 5e-324}) != []
    run = gang()
    (event,) = seconds(run, 31, {"n1": 2e-6, "n2": 2e-6, "n3": 1e9, "n4": 1e9})[:1]
    assert isinstance(event, WorkerStraggling)
    assert 0 <= event.relative <= event.host <= MOST_SCORE


def test_a_tick_is_decided_without_a_change_of_the_soft_state() -> None:
    run = gang()
    run.signal(beat("stranger"))
    slow = EVEN | {"n2": 0.4}
    assert seconds(run, 30, EVEN) + seconds(run, 29, slow) == []
    run.now += timedelta(seconds=2)
    trouble = Trouble(kind=TroubleKind.NOT_FINITE, step=20, message="the loss is not finite")
    say(run, slow, trouble=trouble)
    before = deepcopy(run.soft)
    decisions = run.decider.decide(run.state, run.soft, Tick(), run.now)
    types = [decision.event.type for decision in decisions]
    assert types == ["gang.troubled", "worker.straggling", "node.failed"]
    assert run.soft == before


def test_agents_with_rare_heartbeats_have_stragglers_too() -> None:
    settings = FaultSettings(heartbeat_interval_s=10.0, straggler_after_s=30.0)
    run = DeciderRun(FaultDecider(settings.timing()), fingerprint)
    for node_id in NODES:
        run.feed(joined(node_id))
    run.tick()
    run.feed(allocated(nodes=NODES))
    noted: list[Event] = []
    for _ in range(4):
        noted += second(run, EVEN | {"n2": 0.4})
        for _ in range(9):
            noted += run.tick(1)
    (straggling,) = noted
    assert isinstance(straggling, WorkerStraggling)
    assert straggling.rank == 1
