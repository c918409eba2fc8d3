"""The sums behind reports, by hand: integrals, waits, outages, what preemptions cost, classes."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline_gateway.reports import arithmetic as sums
from gangline_gateway.reports.facts import (
    Facts,
    Gang,
    GpuUse,
    Job,
    NodeChange,
    Period,
    Quota,
    RunMfu,
    waits,
)
from gangline_gateway.reports.period import PeriodError, span, week_of
from gangline_gateway.reports.utilization import over_time, utilization
from gangline_gateway.reports.weekly import figures

START = datetime(2026, 11, 16, tzinfo=UTC)
DAY = Period(START, START + timedelta(hours=24))


def at(hours: float) -> datetime:
    return START + timedelta(hours=hours)


def gang(attempt: int, since: float, until: float | None, gpus: int = 2, **marks: float) -> Gang:
    """Allocated and running at `since`; `marks` are hours of further times."""
    times = {"running_at": since} | marks
    return Gang(
        attempt,
        gpus,
        at(since),
        released_at=None if until is None else at(until),
        **{name: at(hours) for name, hours in times.items()},
    )


def job(*gangs: Gang, gpus: int = 2, ended: float | None = None, **fields: object) -> Job:
    """A job of nlp, submitted at 0 h."""
    values: dict[str, object] = {
        "job_id": "job", "team": "nlp", "name": "job", "gpus": gpus, "priority": 50,
        "state": "" if ended is None else "succeeded", "submitted_at": at(0),
        "ended_at": None if ended is None else at(ended), "gangs": gangs,
    }  # fmt: skip
    return Job(**(values | fields))  # type: ignore[arg-type]


def test_a_period_cuts_what_began_before_it_and_goes_on_after_it() -> None:
    assert DAY.overlap_s(at(-5), at(1)) == 3600
    assert DAY.overlap_s(at(23), at(99)) == 3600
    assert DAY.overlap_s(at(23), None) == 3600
    assert DAY.overlap_s(at(-5), at(-1)) == 0
    assert (DAY.holds(at(0)), DAY.holds(at(24)), DAY.holds(None)) == (True, False, False)


def test_gpus_of_nodes_are_integrated_over_the_time_that_they_are_up() -> None:
    changes = [
        NodeChange("a", at(-10), 8),
        NodeChange("b", at(6), 4),
        NodeChange("a", at(12), 0),  # failed
        NodeChange("a", at(18), 8),  # and came back
    ]
    assert sums.gpu_hours_up(changes, DAY) == 8 * 12 + 8 * 6 + 4 * 18
    assert sums.gpus_up(changes) == 12
    assert sums.gpus_up(changes[:3]) == 4


def test_gpus_held_are_integrated_from_allocation_to_release() -> None:
    jobs = [job(gang(1, -2, 3), gang(2, 4, None, gpus=8)), job()]
    assert sums.gpu_hours_allocated(jobs, DAY) == 2 * 3 + 8 * 20
    assert sums.gpus_allocated(jobs) == 8


def test_the_cost_of_a_period_needs_the_price_of_each_job() -> None:
    half = job(gang(1, 12, None), gpu_hour=3.0)  # 2 GPUs for 12 h
    assert sums.cost_allocated([half, job()], DAY) == 72
    assert sums.cost_allocated([half, job(gang(1, 1, 2))], DAY) is None
    assert sums.cost_allocated([job()], DAY) is None


def test_a_job_waits_before_and_between_its_gangs_and_after_the_last() -> None:
    restarted = job(gang(1, 1, 5), gang(2, 6, 7))
    assert waits(restarted) == [(at(0), at(1)), (at(5), at(6)), (at(7), None)]
    assert sums.gpu_hours_pending([restarted], DAY) == 2 * (1 + 1 + 17)
    assert sums.gpus_pending([restarted, job(gang(1, 1, None)), job(ended=3)]) == 2
    ended = job(gang(1, 1, 5), ended=5)
    assert sums.gpu_hours_pending([ended], DAY) == 2
    assert sums.gpu_hours_pending([job(ended=3)], DAY) == 6  # cancelled in the queue


def test_a_wait_counts_where_it_ended() -> None:
    started = job(gang(1, 1, 5))
    assert sums.first_wait_s(started, DAY) == 3600
    assert sums.first_wait_s(started, Period(at(2), at(24))) is None
    assert sums.first_wait_s(job(), DAY) is None


def test_quantiles_are_values_that_were_there() -> None:
    assert sums.quantile([], 0.5) is None
    assert sums.quantile([7], 0.95) == 7
    assert sums.quantile([4, 1, 3, 2], 0.5) == 2
    assert sums.quantile(range(1, 101), 0.95) == 95
    assert sums.quantile(range(1, 21), 0.95) == 19


def test_an_outage_lasts_from_the_first_failure_until_the_job_runs() -> None:
    once = job(gang(1, 1, 5, failed_at=5), gang(2, 6, 10, running_at=6.5))
    assert sums.repairs_s(once, DAY) == [5400]
    assert sums.repairs_s(once, Period(at(0), at(6))) == []
    never_ran = Gang(2, 2, at(6), released_at=at(7), failed_at=at(7))
    twice = job(gang(1, 1, 5, failed_at=5), never_ran, gang(3, 8, 10, failed_at=10))
    assert sums.repairs_s(twice, DAY) == [3 * 3600]
    assert sums.repairs_s(job(gang(1, 1, 5), gang(2, 6, 8)), DAY) == []  # it did not fail


def test_a_preemption_costs_saving_work_done_again_and_starting_again() -> None:
    again = gang(2, 8, 20, gpus=4, running_at=8.5)
    not_saved = job(gang(1, 1, 5.25, preempted_at=5, saved_at=4), again)
    assert sums.preemption_gpu_hours(not_saved, DAY) == [2 * (0.25 + 1) + 4 * 0.5]
    saved = job(gang(1, 1, 5.25, preempted_at=5, saved_at=5.5), again)
    assert sums.preemption_gpu_hours(saved, DAY) == [2 * 0.25 + 4 * 0.5]
    no_checkpoint = job(gang(1, 1, 5.25, preempted_at=5))
    assert sums.preemption_gpu_hours(no_checkpoint, DAY) == [2 * (0.25 + 4)]
    assert sums.preemption_gpu_hours(saved, Period(at(6), at(24))) == []


def test_mfu_is_the_mean_over_steps() -> None:
    runs = [RunMfu("a", "nlp", 0.5, 30), RunMfu("b", "nlp", 0.1, 10)]
    assert sums.mean_mfu(runs) == pytest.approx(0.4)
    assert sums.mean_mfu([]) is None


def test_a_team_without_a_guarantee_has_its_limit_as_its_share() -> None:
    facts = Facts(
        DAY,
        jobs=(job(gang(1, 0, 12, gpus=4)), job(team="guest", job_id="g")),
        nodes=(NodeChange("a", at(-1), 6),),
        quotas=(Quota("nlp", 4), Quota("small", 8, 2), Quota("wide", 99)),
    )
    rows = {row.team: row for row in utilization(facts, None).teams}
    assert (rows["nlp"].gpus_share, rows["nlp"].utilization) == (4, 0.5)
    assert (rows["small"].gpus_share, rows["small"].utilization) == (2, 0)
    assert (rows["wide"].gpus_share, rows["wide"].utilization) == (6, 0)
    assert (rows["guest"].gpu_limit, rows["guest"].utilization) == (None, None)


def test_what_a_team_holds_counts_for_the_teams_above_it() -> None:
    facts = Facts(
        DAY,
        jobs=(
            job(gang(1, 0, 6), team="speech"),
            job(gang(1, 0, 12), team="text", job_id="t"),
            job(gang(1, 0, 24), team="guest", job_id="g"),
        ),
        quotas=(
            Quota("nlp", 8, 8),
            Quota("speech", 4, 4, parent="nlp"),
            Quota("text", 4, 1, parent="nlp"),
            Quota("idle", 4, 4, parent="gone"),
        ),
        mfu=(RunMfu("job", "speech", 0.2, 1), RunMfu("t", "text", 0.6, 3)),
        gpu_use=(GpuUse("speech", 0.5, 10), GpuUse("text", 0.8, 20)),
    )
    rows = {row.team: row for row in utilization(facts, None).teams}
    held = {name: row.gpu_hours_allocated for name, row in rows.items()}
    assert held == {"guest": 48, "idle": 0, "nlp": 12 + 24, "speech": 12, "text": 24}
    assert rows["nlp"].mfu == pytest.approx((0.2 + 3 * 0.6) / 4)
    assert rows["nlp"].gpu_utilization == pytest.approx((10 * 0.5 + 20 * 0.8) / 30)
    assert (rows["nlp"].parent, rows["text"].parent) == (None, "nlp")
    unused = [(row.team, row.used) for row in figures(facts, None).unused_quota]
    assert unused == [("idle", 0), ("speech", 0.125), ("nlp", 36 / 24 / 8)]  # text: 1 of 1
    own = utilization(facts, frozenset({"text"}))
    assert [(row.team, row.gpu_hours_allocated) for row in own.teams] == [("text", 24)]


def test_teams_in_a_circle_do_not_go_on_for_ever() -> None:
    facts = Facts(
        DAY,
        (job(gang(1, 0, 6)),),
        quotas=(Quota("nlp", 1, parent="b"), Quota("b", 1, parent="nlp")),
    )
    assert [row.gpu_hours_allocated for row in utilization(facts, None).teams] == [12, 12]


def test_classes_of_size_and_priority_hold_every_job_once() -> None:
    sizes, priorities = (1, 2, 8, 9, 32, 33, 128, 129, 5000), (0, 19, 20, 49, 50, 79, 80, 100)
    jobs = tuple(job(gpus=gpus, job_id=f"s{gpus}") for gpus in sizes)
    week = figures(Facts(DAY, jobs=jobs), None)
    assert {row.name: row.waiting for row in week.wait_by_gpus} == {
        "1": 1, "2-8": 2, "9-32": 2, "33-128": 2, "> 128": 2
    }  # fmt: skip
    jobs = tuple(job(priority=priority, job_id=f"p{priority}") for priority in priorities)
    week = figures(Facts(DAY, jobs=jobs), None)
    assert [(row.name, row.waiting) for row in week.wait_by_priority] == [
        ("0-19", 2), ("20-49", 2), ("50-79", 2), ("80-100", 2)
    ]  # fmt: skip


def test_jobs_with_low_mfu_are_bounded_and_the_costly_ones_come_first() -> None:
    count = 150
    facts = Facts(
        DAY,
        jobs=tuple(job(gang(1, 0, 1 + n / 100), job_id=f"j{n:03}") for n in range(count)),
        mfu=tuple(RunMfu(f"j{n:03}", "nlp", 0.3 if n == 149 else 0.1, 5) for n in range(count)),
    )
    low = figures(facts, None).low_mfu
    assert [row.job_id for row in low[:2]] == ["j148", "j147"]  # 0.3 is not low
    assert len(low) == 100


def test_nothing_happened() -> None:
    nothing = Facts(DAY)
    report = utilization(nothing, None)
    assert (report.cluster.gpus_total, report.cluster.utilization, report.mfu) == (0, None, None)
    week = figures(nothing, frozenset())
    assert (week.completion_rate, week.mttr_s, week.preemption_gpu_hours) == (None, None, 0)


@st.composite
def histories(draw: st.DrawFn) -> Job:
    """A job with up to three gangs whose times are in order, before, within and after the day."""
    marks = sorted(draw(st.lists(st.integers(-30, 50), min_size=7, max_size=7)))
    gangs = tuple(
        gang(n + 1, marks[2 * n + 1], marks[2 * n + 2], gpus=draw(st.integers(1, 9)))
        for n in range(draw(st.integers(0, 3)))
    )
    return job(*gangs, submitted_at=at(marks[0]), team=draw(st.sampled_from(["nlp", "vision"])))


@settings(max_examples=50)
@given(st.lists(histories(), max_size=5))
def test_teams_add_up_to_the_cluster_and_halves_to_the_whole(jobs: list[Job]) -> None:
    facts = Facts(DAY, jobs=tuple(jobs))
    report = utilization(facts, None)
    assert math.isclose(
        sum(team.gpu_hours_allocated for team in report.teams),
        report.cluster.gpu_hours_allocated,
    )
    assert math.isclose(
        sum(team.gpu_hours_pending for team in report.teams), report.gpu_hours_pending
    )
    halves = (Period(at(0), at(11)), Period(at(11), at(24)))
    held = sum(sums.gpu_hours_allocated(jobs, half) for half in halves)
    assert math.isclose(held, report.cluster.gpu_hours_allocated)


NOW = at(100)


def test_periods_end_now_at_the_latest() -> None:
    assert span(None, None, NOW) == Period(at(76), NOW)
    assert span(at(90), at(9000), NOW) == Period(at(90), NOW)
    assert span(None, at(50), NOW) == Period(at(26), at(50))
    assert week_of(None, NOW) == Period(at(100 - 168), NOW)
    assert week_of("2026-W47", NOW) == Period(START, NOW)
    assert week_of("2026-W46", NOW) == Period(at(-168), START)


@pytest.mark.parametrize(
    ("since", "until", "field"),
    [
        (at(5), at(5), "from"),
        (at(200), None, "from"),
        (at(-24 * 100), None, "from"),
        (datetime(2026, 11, 16), None, "from"),  # noqa: DTZ001 - without a zone
        (None, datetime(1, 1, 1, tzinfo=UTC), "to"),
    ],
)
def test_periods_that_are_none(since: datetime | None, until: datetime | None, field: str) -> None:
    with pytest.raises(PeriodError) as refused:
        span(since, until, NOW)
    assert refused.value.field == field


@pytest.mark.parametrize("week", ["2026-W54", "2026-W00", "2027-W10", "0000-W01", "2026-47", "x"])
def test_weeks_that_are_none(week: str) -> None:
    with pytest.raises(PeriodError):
        week_of(week, NOW)


def test_a_team_s_gpus_are_given_for_each_part_of_the_period() -> None:
    facts = Facts(DAY, jobs=(job(gang(1, 6, 15), ended=15),), quotas=(Quota("nlp", 8),))
    (team,) = utilization(facts, None, 4).teams
    assert team.gpus_by_part == [0.0, 2.0, 1.0, 0.0]
    assert math.fsum(team.gpus_by_part) / 4 == team.gpus_allocated_mean
    assert utilization(facts, None).teams[0].gpus_by_part == []


def test_steps_over_time_add_up_to_the_whole_period() -> None:
    ours = job(gang(1, -1, 2, gpus=4), gang(2, 5.5, None, gpus=2))
    theirs = job(gang(1, 2, 6), job_id="other", team="vision")
    nodes = (NodeChange("n", at(-3), 8), NodeChange("n", at(12), 0))
    facts = Facts(DAY, (ours, theirs), nodes)
    found = over_time(facts, 24, frozenset({"nlp"})).steps
    assert [step.since for step in found] == [at(hour) for hour in range(24)]
    assert [step.gpus_total for step in found] == [8.0] * 12 + [0.0] * 12
    own = [4.0, 4.0, 0.0, 0.0, 0.0, 1.0] + [2.0] * 18
    assert [step.gpus_own for step in found] == own
    shared = [0.0, 0.0, 2.0, 2.0, 2.0, 2.0] + [0.0] * 18
    assert [step.gpus_allocated for step in found] == [
        a + b for a, b in zip(own, shared, strict=True)
    ]
    assert sum(step.gpus_allocated for step in over_time(facts, 7, None).steps) / 7 * 24 == (
        pytest.approx(sums.gpu_hours_allocated((ours, theirs), DAY))
    )
