"""While the scheduler is away, jobs wait for it: that raises nothing, and counts as no wait."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from gangline_alerts.core.policy.rules import Rules
from gangline_alerts.service.measuring import MeasuredDecider
from gangline_alerts.service.scheduler_watch import SchedulerWatch
from gangline_bus.ports import BusUnavailable
from gangline_schemas.alerts import AlertRule
from gangline_schemas.events.alerts import WatchNoted
from support.builders.alerts import AlertsRun

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Story(AlertsRun):
    """Two nodes that idle, a job that waits, and a scheduler that can be away."""

    def __init__(self) -> None:
        super().__init__(Rules.model_validate({"queue_wait": {"above_s": 1800}}))
        self.since: datetime | None = None
        decider = MeasuredDecider(self.decider.rules, self.decider.receivers)  # type: ignore[attr-defined]
        decider.scheduler_away = lambda: self.since
        self.decider = decider
        self.settle()
        self.node("n1")
        self.node("n2")
        self.queue("a", priority=0)

    def away(self, seconds: float) -> None:
        self.since = self.now
        self.pass_time(seconds, 50)
        self.since = None

    def noted(self) -> list[WatchNoted]:
        return [one for one in self.events(WatchNoted) if one.away_since is not None]  # type: ignore[attr-defined]


def test_nothing_about_waits_is_raised_and_the_absence_is_no_wait() -> None:
    run = Story()
    run.pass_time(600, 50)
    gone = run.now
    run.away(7200)
    assert not run.state.alerts
    run.tick(1)
    assert [one.away_since for one in run.noted()] == [gone]
    run.take_over()
    run.pass_time(1100, 50)
    assert not run.state.alerts
    run.pass_time(200, 50)
    assert [alert.text.rule for alert in run.state.alerts.values()] == [AlertRule.QUEUE_WAIT]
    run.pass_time(3600, 50)
    assert len(run.raised(AlertRule.CLUSTER_UTILIZATION)) == 1
    assert len(run.noted()) == 1


def test_a_short_absence_mutes_and_still_counts_as_a_wait() -> None:
    run = Story()
    run.pass_time(1600, 50)
    run.away(300)
    assert not run.state.alerts
    run.tick(1)
    assert [alert.text.rule for alert in run.state.alerts.values()] == [AlertRule.QUEUE_WAIT]
    assert run.noted() == []


def test_an_alert_that_holds_is_not_resolved_by_an_absence() -> None:
    run = Story()
    run.pass_time(1900, 50)
    assert len(run.state.alerts) == 1
    run.away(400)
    assert len(run.state.alerts) == 1


def test_the_watch_knows_since_when_the_group_is_empty_unless_kafka_is_away() -> None:
    answers: list[int | None] = [2, 0, 0, None, 0, 1]
    times = iter(NOW + timedelta(seconds=number) for number in range(10))

    def members() -> int:
        answer = answers.pop(0)
        if answer is None:
            raise BusUnavailable("away")
        return answer

    watch = SchedulerWatch(members, lambda: next(times))
    found = []
    while answers:
        watch.look()
        found.append(watch.away_since())
    assert found == [None, NOW, NOW, None, NOW + timedelta(seconds=1), None]
