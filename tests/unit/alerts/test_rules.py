"""Each rule on both sides of its threshold, with the mission's defaults."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from gangline_alerts.core.model import Span
from gangline_alerts.core.policy.counted import watched_s
from gangline_alerts.core.policy.rules import QueueWait, Rules
from gangline_schemas.alerts import AlertRule, Cause
from gangline_schemas.job import JobState
from gangline_schemas.limits import METRIC_MAX
from support.builders.alerts import AlertsRun

HOUR_S = 3600.0


@pytest.mark.parametrize(("held", "raised"), [(9, 1), (10, 0)], ids=["56 %", "62 %"])
def test_utilization_below_60_percent_for_an_hour(held: int, raised: int) -> None:
    run = AlertsRun()
    run.settle()
    run.node("n1")
    run.node("n2")
    run.start("a", held - held % 2, ("n1", "n2"))
    if held % 2:
        run.start("b", 1)
    run.pass_time(HOUR_S - 120, 60)
    assert run.raised(AlertRule.CLUSTER_UTILIZATION) == []
    run.pass_time(240, 60)
    run.pass_time(HOUR_S, 60)
    found = run.raised(AlertRule.CLUSTER_UTILIZATION)
    assert len(found) == raised
    if raised:
        assert found[0].value == 9 / 16
        run.start("c", 1)
        run.tick(60)
        assert len(run.resolved(AlertRule.CLUSTER_UTILIZATION)) == 1


def test_an_absence_of_this_service_resolves_nothing() -> None:
    run = AlertsRun()
    run.settle()
    run.node("n1", 16)
    run.pass_time(HOUR_S + 300, 60)
    assert len(run.raised(AlertRule.CLUSTER_UTILIZATION)) == 1
    run.take_over()
    run.tick(700)
    run.pass_time(600, 60)
    assert run.resolved(AlertRule.CLUSTER_UTILIZATION) == []
    run.start("a", 10)
    run.tick(60)
    assert [one.reason for one in run.resolved(AlertRule.CLUSTER_UTILIZATION)] == ["recovered"]


@pytest.mark.parametrize(("gpus", "raised"), [(9, 1), (10, 0)])
def test_a_short_use_within_each_minute_is_a_break(gpus: int, raised: int) -> None:
    run = AlertsRun()
    run.settle()
    run.node("n1", 16)
    run.tick(60 - run.now.second)
    for number in range(130):
        run.tick(10)
        run.start(f"j{number}", gpus)
        run.tick(10)
        run.release(f"j{number}")
        run.tick(40)
    assert len(run.raised(AlertRule.CLUSTER_UTILIZATION)) == raised


def test_a_small_cluster_may_idle() -> None:
    run = AlertsRun()
    run.settle()
    run.node("n1")
    run.pass_time(2 * HOUR_S, 60)
    assert run.raised(AlertRule.CLUSTER_UTILIZATION) == []


@pytest.mark.parametrize(
    ("priority", "waited_s", "raised"),
    [(49, 7199, 0), (49, 7201, 1), (50, 7201, 0)],
)
def test_urgent_jobs_wait_two_hours_at_most(priority: int, waited_s: float, raised: int) -> None:
    run = AlertsRun()
    run.settle()
    run.queue("a", priority=priority)
    run.pass_time(waited_s, 100)
    run.tick()
    found = run.raised(AlertRule.QUEUE_WAIT)
    assert [one.subject for one in found] == ["a"] * raised
    if raised:
        run.change("a", JobState.CANCELLED)
        run.tick(1)
        assert [one.reason for one in run.resolved(AlertRule.QUEUE_WAIT)] == ["ended"]


@pytest.mark.parametrize(("wait_s", "text"), [(6, "6 s"), (300, "5 min")])
def test_a_wait_is_told_in_its_own_unit(wait_s: float, text: str) -> None:
    run = AlertsRun(Rules(queue_wait=QueueWait(above_s=wait_s / 2)))
    run.settle()
    run.queue("a", priority=0)
    run.tick(wait_s)
    (found,) = run.raised(AlertRule.QUEUE_WAIT)
    assert f"waits for {text};" in found.message


def test_the_time_of_an_absence_does_not_count_as_a_wait() -> None:
    run = AlertsRun()
    run.settle()
    run.queue("a", priority=0)
    run.take_over()
    run.tick(12 * HOUR_S)
    run.pass_time(HOUR_S, 60)
    assert run.raised(AlertRule.QUEUE_WAIT) == []
    run.pass_time(HOUR_S + 60, 60)
    assert len(run.raised(AlertRule.QUEUE_WAIT)) == 1


def spell(run: AlertsRun, seconds: float, report: Callable[[], None]) -> None:
    """The same measurements for so long."""
    for _ in range(int(seconds // 10)):
        report()
        run.tick(10)


def running(gpus: int = 8) -> AlertsRun:
    run = AlertsRun()
    run.settle()
    run.node("n1", 8)
    nodes = tuple(f"n{number}" for number in range(1, max(2, gpus // 8 + 1)))
    run.start("a", gpus, nodes)
    return run


@pytest.mark.parametrize(("gpus", "mfu", "raised"), [(128, 0.29, 1), (128, 0.31, 0), (64, 0.29, 0)])
def test_large_jobs_have_30_percent_mfu(gpus: int, mfu: float, raised: int) -> None:
    run = running(gpus)
    spell(run, 590, lambda: run.progress("a", mfu=mfu))
    assert run.raised(AlertRule.LOW_MFU) == []
    spell(run, 60, lambda: run.progress("a", mfu=mfu))
    assert len(run.raised(AlertRule.LOW_MFU)) == raised


def test_a_job_that_is_no_longer_large_has_no_alert_of_large_jobs() -> None:
    run = running(128)
    spell(run, 650, lambda: run.progress("a", mfu=0.1))
    assert len(run.raised(AlertRule.LOW_MFU)) == 1
    run.allocate("a", run.queue("a", 64), 64, tuple(f"n{n}" for n in range(8)), attempt=2)
    run.tick(1)
    assert [one.reason for one in run.resolved(AlertRule.LOW_MFU)] == ["ended"]


def test_a_wait_is_without_the_absences_in_it() -> None:
    now = datetime(2026, 11, 21, 12, tzinfo=UTC)
    hours = [(2, 4), (5, 7), (8, 9)]
    away = tuple(Span(now.replace(hour=a), now.replace(hour=b)) for a, b in hours)
    waits = [watched_s(now.replace(hour=hour), now, away) / HOUR_S for hour in (1, 4, 6, 7, 9)]
    assert waits == [6, 5, 4, 4, 3]


@pytest.mark.parametrize(("mfu", "values"), [(-METRIC_MAX, [0.0]), (METRIC_MAX, [])])
def test_a_program_may_report_any_number_as_its_mfu(mfu: float, values: list[float]) -> None:
    run = running(128)
    spell(run, 650, lambda: run.progress("a", mfu=mfu))
    assert [one.value for one in run.raised(AlertRule.LOW_MFU)] == values


@pytest.mark.parametrize(("waits", "raised"), [(0.21, 1), (0.19, 0)])
def test_data_comes_at_80_percent_of_the_speed_of_computing(waits: float, raised: int) -> None:
    run = running()
    spell(run, 400, lambda: run.progress("a", waits))
    found = run.raised(AlertRule.DATA_LOADING)
    assert len(found) == raised
    if raised:
        spell(run, 30, lambda: run.progress("a", 0.1))
        assert run.resolved(AlertRule.DATA_LOADING) == [], "it is not clear for a minute yet"
        spell(run, 60, lambda: run.progress("a", 0.1))
        assert [one.reason for one in run.resolved(AlertRule.DATA_LOADING)] == ["recovered"]


@pytest.mark.parametrize(
    ("data_wait", "busy_s", "cpu", "cause"),
    [
        (0.4, 0.9, 10, Cause.DATA_WAIT),
        (0.1, 0.6, 10, Cause.SYNCHRONISATION),
        (0.1, 0.9, 95, Cause.CPU_BOUND),
        (0.1, 0.9, 10, Cause.SMALL_BATCH),
    ],
)
def test_gpus_are_80_percent_busy_and_the_cause_is_named(
    data_wait: float, busy_s: float, cpu: float, cause: Cause
) -> None:
    run = running()

    def report(busy_percent: float) -> None:
        run.beat("n1", busy_percent, cpu)
        run.progress("a", data_wait, busy_s=busy_s)

    spell(run, 600, lambda: report(81))
    assert run.raised(AlertRule.GPU_ACTIVITY) == []
    spell(run, 290, lambda: report(79))
    assert run.raised(AlertRule.GPU_ACTIVITY) == []
    spell(run, 30, lambda: report(79))
    (found,) = run.raised(AlertRule.GPU_ACTIVITY)
    assert found.cause is cause
    assert "79% busy" in found.message


@pytest.mark.parametrize(("sm", "raised"), [(79, 1), (81, 0)])
def test_the_activity_of_multiprocessors_counts_where_it_is_measured(
    sm: float, raised: int
) -> None:
    run = running()
    for turn in range(40):
        # A kernel that runs all the time may keep few multiprocessors busy, and the reverse.
        run.beat("n1", 160 - sm, sm_percent=sm if turn % 3 == 0 else None)
        run.progress("a", 0.1)
        run.tick(10)
    found = run.raised(AlertRule.GPU_ACTIVITY)
    assert [one.value for one in found] == [sm / 100] * raised


def test_a_measurement_that_stops_neither_raises_nor_resolves() -> None:
    run = running()
    spell(run, 200, lambda: run.progress("a", 0.5))
    run.pass_time(1000)
    assert run.raised(AlertRule.DATA_LOADING) == []
    spell(run, 400, lambda: run.progress("a", 0.5))
    assert len(run.raised(AlertRule.DATA_LOADING)) == 1
    run.pass_time(1000)
    assert run.resolved(AlertRule.DATA_LOADING) == []
    run.release("a")
    run.tick(1)
    assert [one.reason for one in run.resolved(AlertRule.DATA_LOADING)] == ["ended"]


@pytest.mark.parametrize(("failed", "raised"), [(2, 1), (1, 0)], ids=["2 of 102", "1 of 101"])
def test_saves_fail_in_one_percent_at_most(failed: int, raised: int) -> None:
    run = running()
    for step in range(100):
        run.save("a", step)
    for step in range(failed):
        run.save("a", 1000 + step, committed=False)
    run.pass_time(120)
    assert len(run.raised(AlertRule.FAILED_SAVES)) == raised


def test_a_save_that_its_gang_s_end_cut_off_is_no_failed_save() -> None:
    run = running()
    for step in range(100):
        run.save("a", step)
    run.release("a")
    for step in range(5):
        run.save("a", 1000 + step, committed=False)
    run.pass_time(120)
    assert run.raised(AlertRule.FAILED_SAVES) == []


def test_more_than_two_nodes_fail_in_a_day() -> None:
    run = AlertsRun()
    run.settle()
    for number in range(2):
        run.fail_node(f"n{number}")
        run.fail_node(f"m{number}", "restarted")
    run.tick(1)
    assert run.raised(AlertRule.NODE_FAILURES) == []
    run.fail_node("n3")
    run.tick(1)
    assert [one.value for one in run.raised(AlertRule.NODE_FAILURES)] == [3]
    run.pass_time(25 * HOUR_S, 600)
    assert len(run.resolved(AlertRule.NODE_FAILURES)) == 1


@pytest.mark.parametrize(("ended", "raised"), [(38, 1), (39, 0)], ids=["2 of 40", "2 of 41"])
def test_jobs_fail_in_five_percent_at_most(ended: int, raised: int) -> None:
    run = AlertsRun()
    run.settle()
    for number in range(ended - raised):
        run.end(f"good{number}")
    for number in range(5):
        run.end(f"cancelled{number}", JobState.CANCELLED)
    for number in range(2):
        run.end(f"bad{number}", JobState.FAILED)
    run.tick(1)
    assert len(run.raised(AlertRule.FAILED_JOBS)) == raised


def test_a_rule_that_is_off_resolves_its_alerts() -> None:
    run = AlertsRun()
    run.settle()
    run.queue("a", priority=0)
    run.pass_time(7300, 100)
    assert len(run.raised(AlertRule.QUEUE_WAIT)) == 1
    off = AlertsRun(Rules(queue_wait=QueueWait(enabled=False)))
    run.decider = off.decider
    run.tick(1)
    assert [one.reason for one in run.resolved(AlertRule.QUEUE_WAIT)] == ["off"]


def test_saves_are_counted_once_over_a_takeover() -> None:
    run = running()
    for step in range(3):
        run.save("a", step)
    run.tick(1)
    run.save("a", 3)
    run.save("a", 4, committed=False)
    run.take_over()
    run.pass_time(90)
    run.take_over()
    run.pass_time(90)
    (counts,) = run.state.hours.values()
    assert (counts.saved, counts.unsaved) == (4, 1)


def test_a_team_has_thresholds_of_its_own_and_the_rest_of_the_general_rule() -> None:
    own = {"queue_wait": {"above_s": 600, "severity": "critical"}, "low_mfu": {"enabled": False}}
    general = {"above_s": 1200, "priority_below": 40}
    rules = Rules.model_validate(
        {"queue_wait": general, "low_mfu": {"for_s": 0, "gpus_at_least": 8}, "teams": {"cv": own}}
    )
    assert rules.of_team("cv").queue_wait.priority_below == 40
    assert rules.of_team("nlp").queue_wait == rules.queue_wait
    run = AlertsRun(rules)
    run.settle()
    for job_id, team, priority in (("a", "nlp", 30), ("b", "cv", 30), ("c", "cv", 45)):
        run.queue(job_id, team=team, priority=priority)
    for job_id, team in (("d", "nlp"), ("e", "cv")):
        run.start(job_id, team=team)
    run.pass_time(700, 50)
    for job_id in ("d", "e"):
        run.progress(job_id, mfu=0.1)
    run.tick(1)
    run.tick(1)
    waits = run.raised(AlertRule.QUEUE_WAIT)
    assert [(one.subject, one.severity, one.threshold) for one in waits] == [("b", "critical", 600)]
    run.pass_time(600, 50)
    assert [one.subject for one in run.raised(AlertRule.QUEUE_WAIT)] == ["b", "a"]
    assert [one.subject for one in run.raised(AlertRule.LOW_MFU)] == ["d"]


LEVELS = {
    "queue_wait": {
        "above_s": 600,
        "levels": {"urgent": {"above_s": 1200, "severity": "critical"}, "off": {"enabled": False}},
    },
    "teams": {"vision": {"queue_wait": {"levels": {"urgent": {"above_s": 900}}}}},
}


def test_a_rule_has_a_warning_and_later_a_critical_alert() -> None:
    run = AlertsRun(Rules.model_validate(LEVELS))
    run.settle()
    run.queue("a", priority=0)
    run.pass_time(700, 10)
    assert [(one.level, one.severity) for one in run.raised(AlertRule.QUEUE_WAIT)] == [
        ("", "warning")
    ]
    run.pass_time(600, 10)
    both = run.raised(AlertRule.QUEUE_WAIT)
    assert [(one.level, one.severity, one.threshold) for one in both] == [
        ("", "warning", 600), ("urgent", "critical", 1200),
    ]  # fmt: skip
    run.change("a", JobState.CANCELLED)
    run.tick(1)
    over = run.resolved(AlertRule.QUEUE_WAIT)
    assert {(one.number, one.level) for one in over} == {(one.number, one.level) for one in both}


def test_a_level_that_leaves_the_file_ends_its_alerts() -> None:
    run = AlertsRun(Rules.model_validate(LEVELS))
    run.settle()
    run.queue("a", priority=0)
    run.pass_time(1300, 10)
    run.decider.rules = Rules.model_validate({"queue_wait": {"above_s": 600}})  # type: ignore[attr-defined]
    run.tick(10)
    over = run.resolved(AlertRule.QUEUE_WAIT)
    assert [(one.level, one.reason) for one in over] == [("urgent", "off")]


def test_a_team_s_levels_have_the_fields_of_its_own_rule() -> None:
    rules = Rules.model_validate(LEVELS)
    urgent = rules.levels()["urgent"]
    assert (urgent.queue_wait.above_s, urgent.queue_wait.severity) == (1200, "critical")
    vision = urgent.of_team("vision").queue_wait
    assert (vision.above_s, vision.severity) == (900, "warning")
    assert [name for name, own in rules.levels().items() if own.low_mfu.enabled] == [""]
    assert not rules.levels()["off"].queue_wait.enabled
    with pytest.raises(ValueError, match="no levels of its own"):
        Rules.model_validate({"queue_wait": {"levels": {"a": {"levels": {"b": {"above_s": 9}}}}}})
