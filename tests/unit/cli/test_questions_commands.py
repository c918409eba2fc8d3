"""`gangline explain` and `what-if`: what is shown at 80 columns, and the plan that submit shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.fakes.stub_gateway import NOW, SPEC, Reply, Stub, job, problem
from support.harnesses.cli_run import Runner

JOB = "llama-sft-0123456789"
EXPLAIN, WHAT_IF = f"/v1/training-jobs/{JOB}/explain", "/v1/what-if"
LATER = "2026-11-21T12:30:00Z"
WAITS: dict[str, Any] = {
    "job_id": JOB, "code": "capacity", "message": "needs 4 GPUs together; 2 of 8 are free",
    "since": NOW, "position": 3,
    "ahead": [{"job_id": "theirs-1", "team": "nlp", "gpus": 4},
              {"job_id": None, "team": None, "gpus": 2}],
    "ahead_gpus": 6,
    "order": {"priority": 50, "share_penalty": 25.0, "waiting_bonus": 0.3, "score": 74.7},
    "quota": {"allocated": 2, "ceiling": 8, "limit": 8, "borrow_limit": 4},
    "gpus": {"wanted": 4, "fewest": 2, "free": 2, "total": 8},
    "freed": {"reason": "preempt", "nodes": ["node-0"], "victims": 1, "until": LATER},
    "outlook": {
        "eta": LATER, "eta_is": "estimate", "eta_reason": "", "nodes": ["node-0", "node-1"],
        "level": "rack", "wait_error": {"jobs": 40, "median_s": 65.0, "p90_s": 3700.0},
        "runtime_error": {"jobs": 12, "median": 0.2, "p90": 0.85},
    },
}  # fmt: skip
EXPLAINED: dict[str, Any] = {
    "job_id": JOB, "state": "pending", "code": "capacity", "message": WAITS["message"],
    "since": NOW, "evidence": {"attempt": 0, "waited_s": 61.0}, "eta": LATER, "eta_note": "",
    "waits_for": WAITS, "a_field_of_tomorrow": 1,
}  # fmt: skip
NOW_PLAN: dict[str, Any] = {
    "starts": "now", "gpus": 2, "start": NOW, "level": "node", "preempts": [], "message": "",
    "nodes": [{"node_id": "node-1", "gpus": 2, "indexes": [0, 1]}], "waiting": None, "notes": [],
}  # fmt: skip
AFTER_PLAN = NOW_PLAN | {
    "starts": "after_preemption", "start": LATER, "message": "GPUs are freed for it: preempt",
    "nodes": [{"node_id": "node-1", "gpus": 2, "indexes": []}],
    "preempts": [{"job_id": None, "team": None, "gpus": 2, "deadline": LATER}],
    "cost_gpu_seconds": 7200.0, "value_gpu_seconds": 36000.0,
}  # fmt: skip
LATER_PLAN = NOW_PLAN | {
    "starts": "later", "start": LATER, "nodes": [], "waiting": WAITS,
    "message": "needs 4 GPUs together; 2 of 8 are free", "notes": ["team nlp has 8 of 8 GPUs"],
}  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text("name: llama-sft\nteam: nlp\nrun: 'true'\nresources: {gpus: 2}\n")
    return path


def fits(text: str) -> bool:
    return max(len(line) for line in text.splitlines()) <= 80


def test_explain_shows_what_a_job_waits_for_and_the_next_step_last(
    gangline: Runner, stub: Stub
) -> None:
    stub.on("GET", EXPLAIN, EXPLAINED)
    shown = gangline("explain", JOB)
    assert shown.code == 0, shown.err
    text = " ".join(shown.out.split())
    for part in (
        "about 2026-11-21 12:30 UTC", "on node-0, node-1",
        "3 in the queue; 6 GPUs are wanted first: theirs-1 (4), a job of another team (2)",
        "50 (priority) + 25 (team's share) - 0.3 (waiting) = 74.7",
        "has 2 of the 8 GPUs that it may use now (limit 8, with 4 to borrow)",
        "wants 2 to 4; 2 of 8 are free", "1 job must save first",
        "last 40 starts were off by 1 min 5 s (median), 1 h 1 min (P90)",
        "off by 20 % (median), 85 % (P90)",
    ):  # fmt: skip
        assert part in text
    assert "waited" not in text
    assert shown.out.splitlines()[-1] == "next: gangline queue"
    assert fits(shown.out)
    assert gangline("explain", JOB, "--json").json["waits_for"]["position"] == 3


@pytest.mark.parametrize(
    ("outlook", "text"),
    [
        ({"eta": None, "eta_reason": "no nodes could hold it"}, "not as things stand: no nodes"),
        ({"eta": LATER, "eta_is": "at_least", "eta_reason": "much"}, "no sooner than 2026-11-21"),
    ],
)
def test_explain_says_what_it_does_not_know(
    gangline: Runner, stub: Stub, outlook: dict[str, Any], text: str
) -> None:
    stub.on("GET", EXPLAIN, EXPLAINED | {"waits_for": WAITS | {"outlook": outlook}})
    assert text in gangline("explain", JOB).out
    away = EXPLAINED | {"waits_for": None, "eta": None, "eta_note": "no estimate: it is away"}
    stub.on("GET", EXPLAIN, away)
    assert "no estimate: it is away" in gangline("explain", JOB).out


@pytest.mark.parametrize(
    ("state", "message", "said", "way_on"),
    [
        ("succeeded", "every rank ended with exit code 0", "succeeded at", f"metrics {JOB}"),
        ("failed", "rank 1 was killed by signal 9", "failed at", f"logs {JOB}"),
        ("cancelled", "cancelled by request", "was cancelled at", f"checkpoints {JOB}"),
        ("rejected", "Would exceed quota: 96/64 GPUs", "was rejected at", "teams"),
    ],
)
def test_explain_of_an_ended_job_says_when_and_how_it_ended(
    gangline: Runner, stub: Stub, state: str, message: str, said: str, way_on: str
) -> None:
    evidence = {"restarts": 1, "last_failure": message}
    ended = {"state": state, "code": state, "message": message, "evidence": evidence}
    stub.on("GET", EXPLAIN, EXPLAINED | {"waits_for": None, "eta": None} | ended)
    lines = gangline("explain", JOB).out.splitlines()
    assert lines[0].startswith(f"{JOB} {said} 2026-11-21 10:00 UTC, ")
    assert lines[0].endswith(" ago")
    assert lines[1:] == [f"  {message}", "  restarts: 1", f"next: gangline {way_on}"], "once"
    running = {"state": "running", "code": "running", "message": "the job is running"}
    stub.on("GET", EXPLAIN, EXPLAINED | {"waits_for": None, "eta": None} | running)
    assert gangline("explain", JOB).out.splitlines()[0] == f"{JOB} is running"


def test_sizes_of_a_job_with_workers_are_asked_as_well(
    gangline: Runner, stub: Stub, file: Path
) -> None:
    text = file.read_text().replace("{gpus: 2}", "{workers: 2, gpus_per_worker: 2}")
    file.write_text(text)
    stub.on("POST", WHAT_IF, NOW_PLAN, NOW_PLAN)
    assert gangline("what-if", str(file), "--gpus", "2", "--gpus", "8").code == 0
    asked = [body["resources"] for body in stub.bodies("POST", WHAT_IF)]
    assert [(one["gpus"], one["gpus_per_worker"]) for one in asked] == [(2, 2), (8, 2)]


def test_what_if_asks_for_each_size_and_changes_nothing(
    gangline: Runner, stub: Stub, file: Path
) -> None:
    stub.on("POST", WHAT_IF, NOW_PLAN, AFTER_PLAN, LATER_PLAN)
    shown = gangline("what-if", str(file), "--gpus", "2", "--gpus", "4", "--gpus", "8")
    assert shown.code == 0, shown.err
    sizes = [body["resources"]["gpus"] for body in stub.bodies("POST", WHAT_IF)]
    assert sizes == [2, 4, 8]
    assert {(item.method, item.path) for item in stub.asked} == {("POST", WHAT_IF)}
    text = " ".join(shown.out.split())
    for part in (
        "llama-sft with 2 GPUs starts now, on node-1 (GPUs 0, 1)", "within one node",
        "on node-1 (2 GPUs)", "preempts a job of another team (2 GPUs)",
        "2.00 GPU-hours; starting sooner is worth 10.00", "team nlp has 8 of 8 GPUs",
    ):  # fmt: skip
        assert part in text
    assert shown.out.splitlines()[-1].startswith("next: gangline submit")
    stub.on("POST", WHAT_IF, NOW_PLAN)
    assert gangline("what-if", str(file), "--json").json["starts"] == "now"


def test_what_if_does_not_wait_long_for_a_scheduler_that_is_away(
    gangline: Runner, stub: Stub, file: Path
) -> None:
    stub.on("POST", WHAT_IF, problem(503, "no-answer", "the scheduler does not answer"))
    shown = gangline("what-if", str(file))
    assert (shown.code, shown.out) == (1, "")
    assert "the scheduler does not answer" in shown.err
    assert len(stub.asked) == 1


@pytest.mark.parametrize(
    ("answer", "texts"),
    [
        (NOW_PLAN, ["2 of 4 GPUs are free: fits now", "now, on node-1 (GPUs 0, 1)"]),
        (AFTER_PLAN, ["waits for room", "preempts   a job of another team (2 GPUs)"]),
        (LATER_PLAN, ["waits for room", "about 2026-11-21 12:30 UTC"]),
        (problem(503, "no-answer", "away"), ["2 of 4 GPUs are free: fits now"]),
    ],
)
def test_submit_shows_when_where_and_whom(
    gangline: Runner, stub: Stub, file: Path, answer: Reply | dict[str, Any], texts: list[str]
) -> None:
    dry = {"valid": True, "job_id": JOB, "gpus": 2, "notes": [], "spec": SPEC}
    stub.on("POST", "/v1/training-jobs", dry, Reply(job("pending"), 201))
    stub.on("POST", WHAT_IF, answer)
    shown = gangline("submit", str(file), "-y")
    assert (shown.code, shown.out) == (0, f"{JOB}\n")
    for text in texts:
        assert text in shown.err
    assert fits(shown.err)
