"""`gangline alerts` and `gangline notifications`: what they ask, and tables that fit."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from support.fakes.stub_gateway import Stub
from support.harnesses.cli_run import Runner

JOB = "train-fsdp-6a292f7d96"


def now() -> datetime:
    """Request in each test: a whole run may take longer than the half hours below."""
    return datetime.now(UTC)


"""Whole hours are shown; half an hour lies between any and the next."""
AT = "2026-11-21T08:00:00Z"
ALERT: dict[str, Any] = {
    "number": 17, "rule": "queue-wait", "subject": "llama-sft-with-a-rather-long-name-0123456789",
    "team": "a-team-with-a-long-name", "severity": "warning", "value": 7205.0,
    "threshold": 7200.0, "message": "job llama waits " + "for long " * 12, "cause": None,
    "raised_at": AT, "resolved_at": None, "silence": 3, "targets": [],
}  # fmt: skip
SILENCE: dict[str, Any] = {
    "number": 3, "rule": None, "team": "nlp", "subject": None, "until": AT, "comment": "move",
    "user": "ada", "begun_at": AT,
}  # fmt: skip
SENT: dict[str, Any] = {
    "notification": "n42", "target": "team-hook", "team": "nlp", "about": ALERT["subject"],
    "alerts": 1, "state": "deferred", "tries": 2, "text": "the receiver answered HTTP 503",
    "due_at": AT, "next_at": AT, "ended_at": None,
}  # fmt: skip


def test_alerts_are_a_table_and_sentences(stub: Stub, gangline: Runner) -> None:
    stub.on("GET", "/v1/alerts", {"alerts": [ALERT, {**ALERT, "number": 16, "resolved_at": AT}]})
    done = gangline("alerts", "--all")
    lines = done.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[1].endswith("silenced by 3")
    assert lines[2].endswith("resolved")
    assert "17: job llama waits" in done.out
    assert gangline("--json", "alerts").json[0]["number"] == 17


def test_there_may_be_none(stub: Stub, gangline: Runner) -> None:
    stub.on("GET", "/v1/alerts", {"alerts": []})
    done = gangline("alerts")
    assert (done.code, done.out, done.err) == (0, "", "no alerts\n")


def test_a_silence_is_begun_listed_and_ended(stub: Stub, gangline: Runner) -> None:
    stub.on("POST", "/v1/silences", SILENCE)
    stub.on("GET", "/v1/silences", {"silences": [SILENCE]})
    stub.on("POST", "/v1/silences/3/end", SILENCE)
    begun = gangline("alerts", "silence", "--team", "nlp", "--hours", "2", "--comment", "move")
    assert "silence 3 holds until 2026-11-21 08:00 UTC: team nlp" in begun.out
    assert stub.asked[-1].json == {"team": "nlp", "hours": 2, "comment": "move"}
    assert "all" in gangline("alerts", "silences").out.splitlines()[1]
    assert "silence 3 has ended: team nlp" in gangline("alerts", "unsilence", "3").out
    assert [asked.path for asked in stub.asked] == [
        "/v1/silences", "/v1/silences", "/v1/silences/3/end",
    ]  # fmt: skip
    assert gangline("alerts", "silence").code == 2


def test_notifications_fit(stub: Stub, gangline: Runner) -> None:
    stub.on("GET", "/v1/notifications", {"notifications": [SENT]})
    lines = gangline("notifications").out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "deferred" in lines[1]
    assert lines[-1] == "  n42: the receiver answered HTTP 503", "the table has no room for it"


def alert(number: int, **fields: Any) -> dict[str, Any]:
    return {
        "number": number, "rule": "queue-wait", "subject": JOB, "team": "nlp",
        "severity": "warning", "value": 7200.0, "threshold": 3600.0,
        "message": "it waits for 2 h", "cause": None,
        "raised_at": (now() - timedelta(hours=1, minutes=30)).isoformat(), "resolved_at": None,
        "silence": None, "targets": ["slack"],
    } | fields  # fmt: skip


def silence(number: int) -> dict[str, Any]:
    return {
        "number": number, "rule": "queue-wait", "team": "nlp", "subject": None,
        "until": (now() + timedelta(hours=4, minutes=30)).isoformat(), "comment": "cluster move",
        "user": "ada", "begun_at": now().isoformat(),
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
    assert "--rule, --team, --job or --model" in refused.err


def test_notifications_show_their_delivery(gangline: Runner, stub: Stub) -> None:
    sent = {
        "notification": "n-1", "target": "slack", "team": "nlp", "about": "queue-wait",
        "alerts": 1, "state": "delivered", "tries": 2, "text": "ok",
        "due_at": (now() - timedelta(hours=2, minutes=30)).isoformat(), "next_at": None,
        "ended_at": now().isoformat(),
    }  # fmt: skip
    stub.on("GET", "/v1/notifications", {"notifications": [sent]})
    row = gangline("notifications").out.splitlines()[1].split()
    assert row == ["n-1", "2", "h", "slack", "queue-wait", "delivered", "2", "ok"]
