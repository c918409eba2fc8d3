"""A changed file of alerts holds without a restart; a wrong one changes nothing."""

from __future__ import annotations

import os
from pathlib import Path

from gangline_alerts.core.policy.rules import Rules
from gangline_alerts.service.alerts_file import WatchedFile
from gangline_alerts.service.measuring import MeasuredDecider
from support.builders.alerts import AlertsRun


def test_a_changed_file_is_read_once_its_writer_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "alerts.yaml"
    path.write_text("rules: {queue-wait: {above_s: 60}}")
    watched = WatchedFile(path)
    assert watched.renewed() is None
    path.write_text("rules: {queue-wait: {above")
    assert watched.renewed() is None
    path.write_text("rules: {queue-wait: {above_s: 120}}")
    assert watched.renewed() is None, "it has just changed again"
    found = watched.renewed()
    assert found is not None
    assert found.rules.queue_wait.above_s == 120
    assert watched.renewed() is None


def test_a_wrong_or_missing_file_is_left_until_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "alerts.yaml"
    path.write_text("rules: {}")
    watched = WatchedFile(path)
    changes = (
        lambda: path.write_text("rules: {queue-wait: 5}"),
        lambda: path.write_text("rules: 2026-13-45"),
        lambda: path.write_text("[" * 5000),
        path.unlink,
    )
    for change in changes:
        change()
        assert [watched.renewed() for _ in range(3)] == [None] * 3
    new = tmp_path / "new.yaml"
    new.write_text("routes: []\nreceivers: {ops: {url: 'https://hooks.example/x'}}")
    os.replace(new, path)  # noqa: PTH105 - as editors do
    watched.renewed()
    found = watched.renewed()
    assert found is not None
    assert list(found.receivers) == ["ops"]


def test_the_decider_judges_by_the_renewed_rules_from_the_next_tick() -> None:
    run = AlertsRun(Rules.model_validate({"queue_wait": {"enabled": False}}))
    decider = MeasuredDecider(run.decider.rules, run.decider.receivers)  # type: ignore[attr-defined]
    run.decider = decider
    run.settle()
    run.queue("a", priority=0)
    run.pass_time(300, 50)
    assert not run.state.alerts

    def renew() -> None:
        decider.rules = Rules.model_validate({"queue_wait": {"above_s": 60}})

    decider.renew = renew
    run.tick(1)
    assert list(run.state.alerts) == ["queue-wait/nlp/a"]
