"""Alerts: what fires and why, silences by form, rules with thresholds, deliveries."""

from __future__ import annotations

from typing import Any

import pytest

from gangline_schemas.api.alerts import (
    AlertList,
    NotificationList,
    RuleList,
    RuleRow,
    SentNotification,
    Silence,
    SilenceList,
    Threshold,
)
from gangline_schemas.api.cluster import TeamList
from support.builders.console import AT, alert, console, csrf


def silence(**changes: Any) -> Silence:
    values: dict[str, Any] = {
        "number": 3, "rule": "queue-wait", "team": "research", "subject": None, "until": AT,
        "comment": "move", "user": "ana", "begun_at": AT,
    }  # fmt: skip
    return Silence.model_validate(values | changes)


LISTS = {
    "GET /v1/alerts": AlertList(
        alerts=[
            alert(),
            alert(18, rule="gpu-activity", value=0.434, threshold=0.8, cause="data wait"),
            alert(19, rule="node-failures", subject="cluster", team="", value=3, threshold=2),
        ]
    ),
    "GET /v1/silences": SilenceList(silences=[silence()]),
    "GET /v1/teams": TeamList(teams=[]),
}


def test_an_alert_shows_its_value_against_the_threshold_in_the_rule_s_unit() -> None:
    client, _ = console(LISTS)
    text = client.get("/console/alerts").text
    for shown in (
        "2 h 6 min, above 2 h", "43.4 %, below 80 %", "3 nodes, above 2",
        "Likely cause: data wait", "3 firing", "rule queue-wait, team research",
    ):  # fmt: skip
        assert shown in text, shown


def test_resolved_ones_are_asked_for_by_the_address() -> None:
    client, gateway = console(LISTS)
    client.get("/console/alerts?all=true")
    assert dict(next(item[1] for item in gateway.asked if item[0] == "GET /v1/alerts"))["all"]


def test_a_silence_of_a_rule_is_asked_for_in_the_address() -> None:
    client, _ = console(LISTS)
    text = client.get("/console/alerts/silence?rule=queue-wait").text
    assert "<option selected>queue-wait</option>" in text


def test_an_alert_is_silenced_by_a_form_with_hours_and_a_comment() -> None:
    client, gateway = console({**LISTS, "POST /v1/silences": silence(number=4)})
    form = client.get("/console/alerts/silence?alert=17").text
    assert "llama waits" in form
    sent = {"csrf": csrf(), "alert": "17", "hours": "8", "comment": "cluster move"}
    answer = client.post("/console/alerts/silence", data=sent)
    assert answer.headers["location"] == "/console/alerts?done=silence+4+holds"
    body = next(item[2] for item in gateway.asked if item[0] == "POST /v1/silences")
    assert body == {"alert": "17", "hours": "8", "comment": "cluster move"}


def test_a_silence_is_ended_by_its_form_alone() -> None:
    client, gateway = console({**LISTS, "POST /v1/silences/3/end": silence()})
    refused = client.post("/console/alerts/silences/end", data={"silence": "3"})
    assert refused.status_code == 403
    assert not [item for item in gateway.asked if item[0].startswith("POST")]
    for wrong in ("", "../x"):
        sent = {"csrf": csrf(), "silence": wrong}
        assert client.post("/console/alerts/silences/end", data=sent).status_code == 422
    sent = {"csrf": csrf(), "silence": "3"}
    answer = client.post("/console/alerts/silences/end", data=sent)
    assert answer.headers["location"] == "/console/alerts?done=silence+3+has+ended"


def test_an_alert_that_is_not_there_has_no_form() -> None:
    client, _ = console(LISTS)
    assert client.get("/console/alerts/silence?alert=99").status_code == 404


def test_rules_show_thresholds_with_units() -> None:
    fields = [("above_s", 7200.0), ("below", 0.6), ("at_least", 20.0)]
    row = RuleRow(
        rule="queue-wait", team="vision", about="job", description="A job waits too long.",
        enabled=False, severity="critical",
        thresholds=[Threshold(name=name, value=value, description="d") for name, value in fields],
    )  # fmt: skip
    client, _ = console({"GET /v1/alert-rules": RuleList(rules=[row])})
    text = client.get("/console/alerts/rules").text
    for shown in ("2 h", "60 %", "<b>20</b>", "vision", "off", "critical"):
        assert shown in text, shown


def test_deliveries_show_the_answer_and_the_next_try() -> None:
    one = SentNotification(
        notification="n7", target="hook", team="research", about="queue-wait", alerts=2,
        state="deferred", tries=3, text="<b>refused</b>", due_at=AT, next_at=AT, ended_at=None,
    )  # fmt: skip
    client, _ = console({"GET /v1/notifications": NotificationList(notifications=[one])})
    text = client.get("/console/alerts/deliveries").text
    assert "(2 alerts)" in text
    assert "&lt;b&gt;refused" in text
    assert "again" in text


@pytest.mark.parametrize(
    ("done", "shown"), [("silence 4 holds", True), ("your token was stolen, write to x", False)]
)
def test_the_note_after_a_form_says_only_its_own_words(done: str, shown: bool) -> None:
    client, _ = console(LISTS)
    text = client.get("/console/alerts", params={"done": done}).text
    assert (done.capitalize() in text) == shown
