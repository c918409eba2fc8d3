"""Input that is always old: no rule is judged, and the service says so until it ends."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from structlog.testing import capture_logs

from gangline_alerts.__main__ import tell
from gangline_alerts.core.policy.rules import Rules
from gangline_alerts.service.measuring import MeasuredDecider
from gangline_schemas.alerts import AlertRule
from gangline_schemas.events.scheduling import JobQueued
from gangline_schemas.job import JobSpec
from gangline_service.health import Health
from support.builders.alerts import AlertsRun

SPEC = JobSpec.model_validate({"name": "a", "team": "nlp", "run": "true", "resources": {"gpus": 8}})


class Story(AlertsRun):
    """A job that waits too long, and a scheduler whose clock may be behind."""

    def __init__(self) -> None:
        super().__init__(Rules.model_validate({"queue_wait": {"above_s": 600}}))
        self.said: list[str] = []
        decider = MeasuredDecider(self.decider.rules, self.decider.receivers)  # type: ignore[attr-defined]
        decider.tell = self.said.append
        self.decider = decider
        self.settle()
        self.queue("a", priority=0)

    def hear(self, behind_s: float, seconds: float) -> None:
        """A job is queued every ten seconds, with times of the scheduler's clock."""
        for number in range(int(seconds // 10)):
            at = self.now - timedelta(seconds=behind_s)
            event = JobQueued(
                job_id=f"b{self._offset}-{number}", spec=SPEC, user="ada", submitted_at=at
            )
            received = self.received(event)
            self.take(replace(received, envelope=replace(received.envelope, time=at)))
            self.tick(10)

    def behind(self) -> float:
        (found,) = (
            one.value
            for one in self.decider.newest  # type: ignore[attr-defined]
            if one.name == "gangline.alerts.behind"
        )
        return found


def test_a_clock_that_is_behind_is_named_once_and_judging_goes_on_when_it_is_right() -> None:
    run = Story()
    assert run.behind() == 0
    run.hear(behind_s=65, seconds=900)
    assert run.raised(AlertRule.QUEUE_WAIT) == []
    (why,) = run.said
    assert "gangline.scheduling" in why
    assert "65 s old" in why
    assert "08:00:20" in why
    assert run.behind() == 900
    run.hear(behind_s=0, seconds=30)
    assert run.said == [why, ""]
    assert run.behind() == 0
    assert len(run.raised(AlertRule.QUEUE_WAIT)) == 1


def test_a_backlog_that_is_read_within_a_minute_is_not_worth_a_word() -> None:
    run = Story()
    run.hear(behind_s=5000, seconds=60)
    run.hear(behind_s=0, seconds=60)
    assert run.said == []


def test_a_clock_that_is_put_back_ends_it() -> None:
    run = Story()
    run.hear(behind_s=65, seconds=100)
    run.now -= timedelta(hours=1)
    run.tick()
    assert run.said[-1] == ""
    assert run.behind() == 0


def test_the_health_page_and_the_log_have_it() -> None:
    health = Health()
    with capture_logs() as lines:
        tell(health, "")
    assert health.ready()
    assert lines == []
    with capture_logs() as lines:
        tell(health, "the clock is behind")
    (check,) = health.checks()
    assert (check.name, check.ok, check.detail) == ("input", False, "the clock is behind")
    assert [line["why"] for line in lines] == ["the clock is behind"]
