"""`gangline checkpoints`: each checkpoint's health, cost and reason to stay, and the interval."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from support.fakes.stub_gateway import Stub, job
from support.harnesses.cli_run import Runner

JOB = "train-fsdp-6a292f7d96"
PATH = f"/v1/training-jobs/{JOB}/checkpoints"
ADVICE = {
    "attempt": 2, "interval_s": 414.0, "limited_by": "optimum", "cost_s": 3.01, "busy_s": 40.0,
    "mtbf_s": 28_440.0, "failures": 1.0, "lost_s": 247.0, "advised_at": "2026-11-21T08:00:00Z",
    "reason": "a save costs training 3.01 s, and a failure is expected every 7.9 h: least is "
    "lost at this interval", "risk": "",
}  # fmt: skip


def ago(**ages: float) -> str:
    return (datetime.now(UTC) - timedelta(**ages)).isoformat()


def checkpoint(step: int, **fields: Any) -> dict[str, Any]:
    return {
        "attempt": 1, "step": step, "status": "committed", "committed_at": ago(hours=3, minutes=5),
        "world_size": 1024, "size_bytes": 1_610_612_736, "write_s": 30.2, "blocked_s": 0.012,
        "verify_s": 9.84, "reason": "", "retained": ["latest"], "tiers": ["store"],
        "metrics": {"eval_loss": 2.1},
    } | fields  # fmt: skip


def test_each_one_has_a_line_with_health_cost_and_reason_to_stay(
    gangline: Runner, stub: Stub
) -> None:
    stub.on("GET", PATH, {
        "checkpoints": [
            checkpoint(120_000, attempt=12, scrubbed_at=ago(days=2, hours=3)),
            checkpoint(110, retained=["latest", "best"]),
            checkpoint(100, status="corrupted", retained=[], reason="teams/nlp/x/rank-00000.bin: "
                       "holds other bytes than were written (xxh3-128 differs)"),
            checkpoint(90, status="deleted", retained=[], reason="newer checkpoints replace it"),
            checkpoint(80, retained=["in use"]),
        ],
        "interval_s": 600.0, "advice": ADVICE, "prefix": f"teams/nlp/checkpoints/{JOB}",
    })  # fmt: skip
    shown = gangline("checkpoints", JOB)
    assert shown.code == 0, shown.err
    lines = shown.out.splitlines()
    assert max(len(line) for line in lines) <= 80
    cells = [line.split() for line in lines[:6]]
    assert cells[0][:4] == ["STEP", "TRY", "HEALTH", "RETAINED"]
    assert cells[1][:4] == ["120000", "12", "scrubbed", "latest"]
    assert cells[1][4:] == ["1.6", "GB", "store", "12", "ms", "30", "s", "9.8", "s", "3", "h"]
    assert cells[2][2:4] == ["committed", "latest+best"]
    assert [row[2] for row in cells[3:]] == ["corrupted", "deleted", "committed"]
    assert "in use" in lines[5]
    text = " ".join(shown.out.split())
    assert "step 100 of attempt 1 is corrupted: teams/nlp/x/rank-00000.bin: holds" in text
    assert "scrubbed: all bytes were read again and found right, the last time 2 d ago" in text
    assert "interval: 10 min at present" in text
    assert "advised: 6 min 54 s for attempt 2: a save costs training 3.01 s" in text
    assert "at risk" not in text
    place = f"teams/nlp/checkpoints/{JOB}/attempt-0012/step-0000120000"
    assert lines[-2:] == ["step 120000 is in the store at", place]


def test_why_one_is_not_in_the_store_yet_is_said(gangline: Runner, stub: Stub) -> None:
    reason = "get k: S3 refused access to bucket 'b' (403); check the credentials"
    waits = checkpoint(50, status="saved", tiers=["nodes"], retained=[], reason=reason)
    stub.on("GET", PATH, {"checkpoints": [checkpoint(60, status="saved"), waits, checkpoint(40)]})
    shown = " ".join(gangline("checkpoints", JOB).out.split())
    assert f"step 50 of attempt 1 waits for the store: {reason}" in shown
    assert shown.count("waits for the store") == 1


def test_what_an_incremental_one_wrote_is_said_beside_what_it_holds(
    gangline: Runner, stub: Stub
) -> None:
    some = {"size_bytes": 805_000_000, "whole_bytes": 1_610_612_736, "refers": [10, 30]}
    stub.on("GET", PATH, {"checkpoints": [checkpoint(50), checkpoint(40, **some), checkpoint(30)]})
    shown = " ".join(gangline("checkpoints", JOB).out.split())
    assert "written: 805.0 MB of 1.6 GB for step 40; the rest lies in step 10, 30" in shown


def test_where_each_lies_is_shown(gangline: Runner, stub: Stub) -> None:
    saved = checkpoint(30, status="saved", tiers=["nodes"], retained=[], size_bytes=0)
    both = checkpoint(20, tiers=["nodes", "store"])
    gone = checkpoint(10, status="deleted", tiers=[], retained=[])
    stub.on("GET", PATH, {"checkpoints": [saved, both, gone]})
    lines = gangline("checkpoints", JOB).out.splitlines()
    rows = [line.split() for line in lines[1:4]]
    assert rows[0][:9] == ["30", "1", "saved", "-", "-", "nodes", "-", "-", "-"]
    assert [row[6] for row in rows[1:]] == ["both", "-"]


def test_what_a_slow_store_puts_at_risk_is_said(gangline: Runner, stub: Stub) -> None:
    risk = "the store is slow: a failure is expected to cost 30 minutes of work"
    stub.on("GET", PATH, {"checkpoints": [checkpoint(1)], "advice": ADVICE | {"risk": risk}})
    assert f"at risk: {risk}" in " ".join(gangline("checkpoints", JOB).out.split())


def test_json_has_everything_of_all_pages(gangline: Runner, stub: Stub) -> None:
    stub.on(
        "GET", PATH,
        {"checkpoints": [checkpoint(30), checkpoint(20)], "cursor": "20.1", "advice": ADVICE},
        {"checkpoints": [checkpoint(10)], "cursor": None, "advice": ADVICE},
    )  # fmt: skip
    found = gangline("checkpoints", JOB, "--json").json
    assert [item["step"] for item in found["checkpoints"]] == [30, 20, 10]
    assert found["checkpoints"][0]["metrics"] == {"eval_loss": 2.1}
    assert found["advice"]["interval_s"] == 414.0
    asked = [call.query for call in stub.asked if call.path == PATH]
    assert asked[-1]["cursor"] == ["20.1"]


def test_what_was_promoted_or_refused_is_shown_with_the_reason(
    gangline: Runner, stub: Stub
) -> None:
    refused = {
        "promotion": "refused",
        "promotion_run": "validate-1",
        "promotion_reason": "its loss",
    }
    stub.on("GET", PATH, {"checkpoints": [
        checkpoint(40, promotion="asked"),
        checkpoint(30, **refused),
        checkpoint(20, promotion="promoted", retained=["promoted"]),
        checkpoint(15, promotion="promoted", retained=["latest", "promoted"]),
        checkpoint(12, promotion="promoted", retained=["latest", "pinned", "promoted"]),
        checkpoint(10, retained=["pinned"], pinned=True),
    ]})  # fmt: skip
    lines = gangline("checkpoints", JOB).out.splitlines()
    assert max(len(line) for line in lines) <= 80
    assert [line.split()[3:5] for line in lines[:7]] == [
        ["RETAINED", "GATE"], ["latest", "asked"], ["latest", "no"], ["promoted", "yes"],
        ["latest", "yes"], ["pinned+l…", "yes"],
        ["pinned", "-"],
    ]  # fmt: skip
    text = " ".join(" ".join(lines).split())
    assert "step 30 of attempt 1 is not promoted: its loss (gangline logs validate-1)" in text


def test_a_step_is_pinned_unpinned_and_promoted(gangline: Runner, stub: Stub) -> None:
    stub.on("GET", PATH, {"checkpoints": [checkpoint(20)]})
    stub.on("POST", f"{PATH}/10/pin", checkpoint(10, pinned=True))
    stub.on("POST", f"{PATH}/20/pin", checkpoint(20))
    stub.on("POST", f"{PATH}/20/promote", job("pending", job_id="validate-train-1"))
    shown = gangline("checkpoints", JOB, "--pin", "10", "--unpin", "20", "--promote", "20")
    assert shown.code == 0, shown.err
    assert stub.bodies("POST", f"{PATH}/10/pin") == [{"pinned": True}]
    assert stub.bodies("POST", f"{PATH}/20/pin") == [{"pinned": False}]
    assert stub.asked[-2].path == f"{PATH}/20/promote"
    assert "step 20 is validated by validate-train-1" in shown.err
