"""`gangline health` and `gangline search`: what they ask, and tables that fit."""

from __future__ import annotations

from typing import Any

from support.fakes.stub_gateway import Stub
from support.harnesses.cli_run import Runner

AT = "2026-11-21T08:00:00Z"
SERVICE: dict[str, Any] = {
    "service": "scheduler", "instance": "scheduler-on-a-host-with-a-long-name-4711",
    "version": "0.1.0", "state": "ready", "started_at": AT, "reported_at": AT, "beat_age_s": 0.1,
    "unread_records": 48213, "checks": [], "unread": [],
    "snapshots": [{"shard": 0, "seq": 7, "written_at": AT}],
}  # fmt: skip
ABSENT = SERVICE | {
    "service": "tracker", "instance": "", "version": "", "state": "absent", "started_at": None,
    "reported_at": None, "beat_age_s": None, "unread_records": None, "snapshots": [],
}  # fmt: skip
LETTER: dict[str, Any] = {
    "topic": "gangline.requests", "partition": 1, "offset": 8, "dead_letter": 2, "refused_at": AT,
    "type": "job.submitted", "source": "", "subject": "", "reason": "resources.gpus: " + "no " * 40,
    "trace": "", "size_bytes": 7, "message": "{}", "cut": False,
}  # fmt: skip


def test_health_is_a_row_for_each_process(stub: Stub, gangline: Runner) -> None:
    answer = {"at": AT, "ok": False, "services": [SERVICE, ABSENT], "dead_letters": []}
    stub.on("GET", "/v1/health", answer)
    lines = gangline("health").out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "48,213" in lines[1]
    assert "absent" in lines[2]


def test_dead_letters_name_the_record_and_the_reason(stub: Stub, gangline: Runner) -> None:
    stub.on("GET", "/v1/dead-letters", {"dead_letters": [LETTER], "cursor": None})
    lines = gangline("health", "--dead-letters", "-n", "5").out.splitlines()
    assert "gangline.requests/1/8" in lines[1]
    assert max(map(len, lines)) <= 80
    assert stub.asked[-1].query == {"limit": ["5"]}


def test_search_joins_its_words(stub: Stub, gangline: Runner) -> None:
    found = {
        "kind": "doc", "id": "guides/alerts.md#silences", "title": "Silences",
        "detail": "Alerts", "team": "", "exact": True,
    }  # fmt: skip
    stub.on("GET", "/v1/search", {"found": [found], "notes": ["ended runs of the past"]})
    done = gangline("search", "end", "silences")
    assert "guides/alerts.md#silences" in done.out
    assert "not searched: ended runs" in done.err
    assert stub.asked[-1].query == {"q": ["end silences"], "limit": ["8"]}
