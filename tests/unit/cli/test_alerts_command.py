"""`gangline alerts` with its silences, `gangline notifications`, and the help of each command."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from gangline.main import commands
from support.fakes.stub_gateway import Stub
from support.harnesses.cli_run import Runner

JOB = "train-fsdp-6a292f7d96"
NOW = datetime.now(UTC)


def alert(number: int, **fields: Any) -> dict[str, Any]:
    return {
        "number": number, "rule": "queue-wait", "subject": JOB, "team": "nlp",
        "severity": "warning", "value": 7200.0, "threshold": 3600.0,
        "message": "it waits for 2 h", "cause": None,
        "raised_at": (NOW - timedelta(hours=1, minutes=5)).isoformat(), "resolved_at": None,
        "silence": None, "targets": ["slack"],
    } | fields  # fmt: skip


def silence(number: int) -> dict[str, Any]:
    return {
        "number": number, "rule": "queue-wait", "team": "nlp", "subject": None,
        "until": (NOW + timedelta(hours=4, minutes=1)).isoformat(), "comment": "cluster move",
        "user": "ada", "begun_at": NOW.isoformat(),
    }  # fmt: skip


def test_active_alerts_are_listed_and_explained(gangline: Runner, stub: Stub) -> None:
    stub.on("GET", "/v1/alerts", {"alerts": [alert(17), alert(16, silence=3)]})
    shown = gangline("alerts")
    assert shown.code == 0, shown.err
    rows = [line.split() for line in shown.out.splitlines()]
    assert rows[1] == ["17", "1", "h", "warning", "queue-wait", JOB, "nlp", "holds"]
    assert rows[2][-3:] == ["silenced", "by", "3"]
    assert "17: it waits for 2 h" in shown.out


def test_silences_are_made_listed_and_ended(gangline: Runner, stub: Stub) -> None:
    stub.on("POST", "/v1/silences", silence(3))
    stub.on("GET", "/v1/silences", {"silences": [silence(3)]})
    stub.on("POST", "/v1/silences/3/end", silence(3))
    made = gangline("alerts", "silence", "--rule", "queue-wait", "--team", "nlp", "--hours", "4")
    assert made.out.startswith("silence 3 holds until "), made.err
    sent = stub.asked[-1].json
    assert (sent["rule"], sent["team"], sent["hours"]) == ("queue-wait", "nlp", 4)
    row = gangline("alerts", "silences").out.splitlines()[1].split()
    assert row == ["3", "4", "h", "queue-wait", "nlp", "all", "ada", "cluster", "move"]
    assert gangline("alerts", "unsilence", "3").out.startswith("silence 3 has ended: rule")


def test_a_silence_of_all_alerts_is_refused(gangline: Runner) -> None:
    refused = gangline("alerts", "silence")
    assert refused.code == 2
    assert "--rule, --team or --job" in refused.err


def test_notifications_show_their_delivery(gangline: Runner, stub: Stub) -> None:
    sent = {
        "notification": "n-1", "target": "slack", "team": "nlp", "about": "queue-wait",
        "alerts": 1, "state": "delivered", "tries": 2, "text": "ok",
        "due_at": (NOW - timedelta(minutes=9)).isoformat(), "next_at": None,
        "ended_at": NOW.isoformat(),
    }  # fmt: skip
    stub.on("GET", "/v1/notifications", {"notifications": [sent]})
    row = gangline("notifications").out.splitlines()[1].split()
    assert row == ["n-1", "9", "min", "slack", "queue-wait", "delivered", "2", "ok"]


def test_every_command_shows_its_help(gangline: Runner) -> None:
    left: list[tuple[tuple[str, ...], Any]] = [((), commands())]
    seen = 0
    while left:
        path, command = left.pop()
        left += [((*path, name), one) for name, one in getattr(command, "commands", {}).items()]
        shown = gangline(*path, "--help")
        assert shown.code == 0, (path, shown.err)
        assert f"gangline {' '.join(path)}".strip() in shown.out
        seen += 1
    assert seen > 30
