"""Alerts are raised once; receivers are notified in groups, not while silenced, and again later."""

from __future__ import annotations

from datetime import timedelta

import pytest

from gangline_alerts.core import judging, notifying, silencing
from gangline_alerts.core.decide import AlertDecider
from gangline_alerts.core.model import Deliver, Delivered, Undelivered
from gangline_alerts.core.policy.routes import Receivers, Route
from gangline_alerts.core.policy.rules import Rules
from gangline_alerts.core.policy.timing import Timing
from gangline_alerts.core.silencing import SILENCES_OF_TEAM
from gangline_schemas.alerts import MAX_RECEIVERS, AlertRule, Severity, SilenceScope
from gangline_schemas.base import Event
from gangline_schemas.events.admin import SilenceRequested, UnsilenceRequested
from gangline_schemas.events.alerts import (
    AlertRaised,
    AlertResolved,
    AlertUnsilenced,
    NotificationDeferred,
    NotificationDelivered,
    NotificationFailed,
    SilenceEnded,
    SilenceRefused,
)
from gangline_schemas.job import JobState
from support.builders.alerts import AlertsRun


def waiting(*jobs: str, receivers: Receivers | None = None) -> AlertsRun:
    """Jobs that have waited for two hours, so that an alert of each is raised at the next Tick."""
    run = AlertsRun(receivers=receivers)
    run.settle()
    for job_id in jobs:
        run.queue(job_id, priority=0)
    run.pass_time(7200, 100)
    assert run.raised(AlertRule.QUEUE_WAIT) == []
    return run


def test_alerts_of_a_rule_and_team_are_sent_together_and_once() -> None:
    run = waiting("a", "b", "c")
    run.tick(1)
    assert len(run.raised(AlertRule.QUEUE_WAIT)) == 3
    assert run.due() == []
    run.pass_time(31, 1)
    (due,) = run.due()
    assert (due.target, due.team, [one.subject for one in due.raised]) == (
        "ops", "nlp", ["a", "b", "c"],
    )  # fmt: skip
    run.take_over()
    run.pass_time(600, 10)
    assert len(run.due()) == 1
    assert len(run.raised(AlertRule.QUEUE_WAIT)) == 3


def test_the_end_of_alerts_is_sent_after_a_pause() -> None:
    run = waiting("a", "b")
    run.pass_time(33, 1)
    for job_id in ("a", "b"):
        run.change(job_id, JobState.CANCELLED)
        run.pass_time(20, 1)
    assert len(run.due()) == 1
    run.pass_time(300, 1)
    first, second = run.due()
    assert [one.number for one in second.resolved] == [one.number for one in first.raised]


def test_an_alert_that_is_over_before_it_was_sent_is_not_sent() -> None:
    run = waiting("a")
    run.tick(1)
    run.change("a", JobState.CANCELLED)
    run.pass_time(600, 1)
    assert run.due() == []


def test_many_alerts_are_changed_over_several_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (judging, silencing):
        monkeypatch.setattr(module, "MOST_AT_ONCE", 2)
    run = waiting("a", "b", "c", "d", "e")
    until = run.now + timedelta(hours=1)
    run.feed(SilenceRequested(scope=SilenceScope(), until=until))

    def changes(kind: type[Event]) -> list[int]:
        counts = []
        while len(run.events(kind)) < 5:
            counts.append(sum(isinstance(one, kind) for one in run.tick(1)))
        return counts

    assert changes(AlertRaised) == [2, 2, 1]
    assert run.feed(UnsilenceRequested(silence=1))[1:] == run.events(AlertUnsilenced)[:1]
    assert changes(AlertUnsilenced) == [2, 2]
    run.decider = AlertDecider(Rules.model_validate({"queue_wait": {"enabled": False}}))
    assert changes(AlertResolved) == [2, 2, 1]


def test_a_clock_that_is_put_back_by_hours_holds_up_nothing() -> None:
    run = waiting("a", "b")
    run.pass_time(60, 1)
    assert len(run.due()) == 1
    (key,) = run.effects()
    run.done(key, Undelivered("HTTP 503"))
    for job_id in ("a", "b"):
        run.change(job_id, JobState.CANCELLED)
    run.now -= timedelta(hours=5)
    run.tick()
    assert [key.partition(":")[0] for key in run.effects()] == ["n1"]
    for number in range(3):
        run.fail_node(f"n{number}")
    run.pass_time(120, 1)
    assert len(run.raised(AlertRule.NODE_FAILURES)) == 1
    assert [(len(one.raised), len(one.resolved)) for one in run.due()[1:]] == [(1, 0), (0, 2)]


def test_routes_choose_by_rule_team_and_severity() -> None:
    routes = (
        Route(to="nlp", teams=("nlp",)),
        Route(to="cv", teams=("cv",)),
        Route(to="pager", severity=Severity.CRITICAL),
        Route(to="waits", rules=(AlertRule.QUEUE_WAIT,)),
        Route(to="nodes", rules=(AlertRule.NODE_FAILURES,)),
    )
    run = waiting("a", receivers=Receivers(routes))
    run.tick(1)
    assert [one.targets for one in run.raised(AlertRule.QUEUE_WAIT)] == [("nlp", "waits")]


def test_an_alert_may_go_to_all_receivers() -> None:
    names = [f"r{number}" for number in range(MAX_RECEIVERS)]
    routes = tuple(Route(to=name) for name in names)
    run = waiting("a", receivers=Receivers(routes, dict.fromkeys(names, frozenset())))
    run.tick(1)
    assert run.raised(AlertRule.QUEUE_WAIT)[0].targets == tuple(names)


def test_a_silenced_alert_is_raised_and_sent_only_once_the_silence_is_over() -> None:
    run = waiting("a", "b")
    until = run.now + timedelta(hours=1)
    run.feed(SilenceRequested(scope=SilenceScope(subject="a"), until=until, user="ada"))
    run.pass_time(60, 1)
    assert [one.silence for one in run.raised(AlertRule.QUEUE_WAIT)] == [1, None]
    assert [[one.subject for one in due.raised] for due in run.due()] == [["b"]]
    run.take_over()
    run.pass_time(4000, 10)
    assert [one.reason for one in run.events(SilenceEnded)] == ["expired"]  # type: ignore[attr-defined]
    assert [[one.subject for one in due.raised] for due in run.due()] == [["b"], ["a"]]


def test_a_silence_can_be_withdrawn_and_wrong_requests_are_answered() -> None:
    run = waiting()
    until = run.now + timedelta(hours=1)
    run.feed(SilenceRequested(scope=SilenceScope(), until=until))
    run.feed(UnsilenceRequested(silence=1, user="ada"))
    assert run.state.silences == {}
    run.feed(UnsilenceRequested(silence=1))
    run.feed(SilenceRequested(scope=SilenceScope(), until=run.now))
    reasons = [one.reason for one in run.events(SilenceRefused)]  # type: ignore[attr-defined]
    assert [reason.partition(";")[0] for reason in reasons] == [
        "there is no silence 1", "until: lies in the past",
    ]  # fmt: skip


def test_silences_are_bounded_for_each_team() -> None:
    run = waiting()
    until = run.now + timedelta(hours=1)
    for team in ["nlp"] * (SILENCES_OF_TEAM + 1) + ["cv", None]:
        run.feed(SilenceRequested(scope=SilenceScope(team=team), until=until))
    [refused] = run.events(SilenceRefused)
    assert refused.reason == "team nlp has 100 silences; withdraw some first"  # type: ignore[attr-defined]
    assert [one.scope.team for one in run.state.silences.values()][-2:] == ["cv", None]
    run.feed(UnsilenceRequested(silence=1))
    run.feed(SilenceRequested(scope=SilenceScope(team="nlp"), until=until))
    assert len(run.state.silences) == SILENCES_OF_TEAM + 2


def test_the_state_forgets_the_texts_of_what_was_sent() -> None:
    run = waiting("a", "b")
    run.pass_time(60, 1)
    [due] = run.due()
    (key,) = run.effects()
    assert due.raised[0].message in str(run.state.open)
    run.done(key, Delivered(0.2, "HTTP 200"))
    [sent] = run.state.sent.values()
    assert (sent.about, sent.alerts, sent.target) == ("queue-wait", 2, "ops")
    assert due.raised[0].message not in str(run.state.sent)


def notified(**timing: float) -> AlertsRun:
    """A job that is to notify ops and another team's receiver, and has failed."""
    receivers = Receivers((), {"ops": frozenset(), "other": frozenset({"cv"})})
    run = AlertsRun(receivers=receivers, timing=Timing(**timing))  # type: ignore[arg-type]
    run.settle()
    notify = [{"on": ["failed"], "webhook": "ops"}, {"on": ["failed"], "webhook": "other"}]
    run.queue("a", notify=notify)
    run.change("a", JobState.RUNNING)
    assert run.due() == []
    run.change("a", JobState.FAILED, "rank 3 exited with code 1")
    run.tick()
    return run


def test_a_job_notifies_those_that_its_team_may() -> None:
    run = notified()
    first, second = run.due()
    assert first.job is not None
    assert (first.target, first.job.state, first.job.reason) == (
        "ops", JobState.FAILED, "rank 3 exited with code 1",
    )  # fmt: skip
    (failed,) = run.events(NotificationFailed)
    assert failed.notification == second.notification  # type: ignore[attr-defined]
    assert "no receiver 'other' for team 'nlp'" in failed.reason  # type: ignore[attr-defined]


def test_what_waits_for_a_receiver_that_never_answers_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(notifying, "MOST_OPEN", 2)
    run = AlertsRun()
    run.settle()
    for job_id in ("a", "b", "c"):
        run.queue(job_id, notify=[{"on": ["failed"], "webhook": "ops"}])
        run.change(job_id, JobState.FAILED)
    (failed,) = run.events(NotificationFailed)
    assert (failed.notification, failed.reason) == (  # type: ignore[attr-defined]
        "n3", "2 earlier notifications still wait for the receiver",
    )  # fmt: skip
    run.queue("d", priority=0)
    run.pass_time(7400, 100)
    assert len(run.due()) == 3, "the alert waits"
    for key in run.effects():
        run.done(key, Delivered(0.1, "HTTP 200"))
    run.tick(1)
    assert [[one.subject for one in due.raised] for due in run.due()[3:]] == [["d"]]


def test_a_delivery_is_tried_again_with_growing_waits_until_it_is_made() -> None:
    run = notified()
    waits = []
    for tries in range(3):
        (key,) = run.effects()
        assert isinstance(run.effects()[key], Deliver)
        run.done(key, Undelivered("HTTP 503"))
        assert run.effects() == {}
        began = run.now
        while not run.effects():
            run.tick(1)
        waits.append((run.now - began).total_seconds())
        run.take_over()
        run.tick()
        assert len(run.events(NotificationDeferred)) == tries + 1
    assert waits == [5, 10, 20]
    (key,) = run.effects()
    run.done(key, Delivered(0.1, "HTTP 200"))
    assert run.effects() == {}
    assert run.done(key, Delivered(0.1, "HTTP 200")) == [], "a second time"
    (delivered,) = run.events(NotificationDelivered)
    assert delivered.tries == 4  # type: ignore[attr-defined]


@pytest.mark.parametrize(("final", "tries"), [(False, 3), (True, 1)])
def test_a_delivery_is_given_up(final: bool, tries: int) -> None:
    run = notified(tries=3)
    while run.effects():
        (key,) = run.effects()
        run.done(key, Undelivered("gone", final))
        run.tick(3600)
    (_, failed) = run.events(NotificationFailed)
    assert (failed.tries, failed.reason) == (tries, "gone")  # type: ignore[attr-defined]
