"""Commands against the documented JSON: what they ask, what they print, how they exit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.fakes.stub_gateway import (
    FAILURE,
    NO_INCIDENTS,
    NODE,
    NOW,
    TEAM,
    TOKEN,
    Reply,
    Stub,
    event,
    job,
    problem,
)
from support.harnesses.cli_run import Runner

JOB = "llama-sft-0123456789"
JOBS = "/v1/training-jobs"
ONE = f"{JOBS}/{JOB}"
EVENT = {
    "topic": "gangline.scheduling", "partition": 0, "offset": 3, "id": "e", "type": "job.queued",
    "source": "/x", "subject": JOB, "time": NOW, "data": {"job_id": JOB, "user": "ada"},
}  # fmt: skip
RUN = {
    "run_id": "a-1", "team": "nlp", "project": "", "name": "a", "user": "ada", "state": "succeeded",
    "reason": "", "attempt": 1, "restarts": 0, "gpus": 2, "priority": 50, "submitted_at": NOW,
    "started_at": NOW, "ended_at": NOW, "gpu_seconds": 84.25, "strategy": "fsdp", "code_ref": "",
    "data_snapshot": "", "hyperparameters": {},
}  # fmt: skip


def point(step: int, value: float) -> dict[str, Any]:
    return {
        "first_step": step,
        "step": step,
        "time": NOW,
        "x": step,
        "value": value,
        "low": value,
        "high": value,
    }


CURVES = {"curves": [{"run_id": JOB, "name": "loss", "points": [point(1, 4.0), point(2, 2.0)]}]}
COMPARISON = {
    "runs": [RUN, RUN | {"run_id": "b-2", "name": "b", "restarts": 1}],
    "differences": [{"field": "hyperparameters.lr", "values": {"a-1": 0.004, "b-2": None}}],
    "metrics": {"loss": {"a-1": {"step": 30, "value": 2.5, "low": 2.5, "high": 5.5}}},
    "curves": [{"run_id": "a-1", "name": "loss", "points": [point(1, 4.0), point(2, 2.0)]}],
}
LINES = [
    {"attempt": 1, "rank": rank, "line": line, "node_id": "n", "time": NOW, "stream": "stdout",
     "text": f"line {line} of {rank}\x1b[31m"} for line in range(2) for rank in range(2)
]  # fmt: skip
CHECKPOINT = {
    "attempt": 1, "step": 20, "status": "committed", "committed_at": NOW, "world_size": 2,
    "size_bytes": 10_500_000, "write_s": 0.25, "blocked_s": 0.012, "reason": "",
}  # fmt: skip


def all_routes(stub: Stub) -> None:
    """Every reading route with something to show."""
    stub.on("GET", JOBS, {"jobs": [job()], "cursor": None})
    stub.on("GET", ONE, job())
    stub.on("GET", f"{ONE}/explain", {
        "job_id": JOB, "state": "pending", "code": "capacity", "message": "needs 4 GPUs together",
        "since": NOW, "evidence": {"cluster_gpus_free": 2, "nothing": None},
    })  # fmt: skip
    stub.on("GET", f"{ONE}/logs", {"lines": LINES, "cursor": "c"})
    stub.on("GET", f"{ONE}/checkpoints", {"checkpoints": [CHECKPOINT]})
    stub.on("GET", f"{ONE}/events", {"events": [EVENT], "cursor": None})
    stub.on("GET", "/v1/events", {"events": [EVENT], "cursor": None})
    stub.on("GET", "/v1/runs", {"runs": [RUN], "cursor": None})
    stub.on("GET", "/v1/runs/compare", COMPARISON)
    stub.on("GET", f"/v1/runs/{JOB}/curves", CURVES)
    stub.on("GET", "/v1/queue", {
        "queue": [{"position": 1, "job_id": JOB, "name": "llama-sft", "team": "nlp", "user": "ada",
                   "priority": 50, "gpus": 4, "score": 49.9, "waiting_since": NOW, "waited_s": 61.0,
                   "waiting": {"code": "capacity", "message": "m", "since": NOW}}],
        "pending_jobs": 1, "pending_gpus": 4,
    })  # fmt: skip
    stub.on("POST", f"{ONE}/cancel", Reply(job("cancelled"), 202))
    stub.on("POST", f"{ONE}/priority", job(priority=10))
    stub.on(
        "POST",
        f"/training-runs/{JOB}/checkpoints/20/restore",
        Reply({"run_id": JOB, "step": 20, "from_run": JOB, "state": "running"}, 202),
    )
    stub.on(
        "POST", "/v1/nodes/node-0/drain", Reply({"node_id": "node-0", "status": "draining"}, 202)
    )
    stub.on("PUT", "/v1/teams/nlp", TEAM | {"gpu_limit": 16})


COMMANDS = [
    ["list"], ["show", JOB], ["explain", JOB], ["logs", JOB], ["checkpoints", JOB], ["events"],
    ["events", "--job", JOB], ["runs"], ["compare", "a-1", "b-2"], ["metrics", JOB], ["queue"],
    ["nodes"], ["teams"], ["cancel", JOB], ["priority", JOB, "10"], ["restore", JOB, "20"],
    ["drain", "node-0"], ["teams", "set", "nlp", "--limit", "16"],
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_text_fits_and_json_is_pure(gangline: Runner, stub: Stub, command: list[str]) -> None:
    all_routes(stub)
    shown = gangline(*command)
    assert shown.code == 0, shown.err
    assert shown.out
    assert max(len(line) for line in shown.out.splitlines()) <= 80
    assert "\x1b" not in shown.out
    machine = gangline(*command, "--json")
    assert machine.code == 0
    if command[0] in {"logs", "events"}:
        assert machine.json_lines
    else:
        assert machine.json
    assert TOKEN not in shown.out + shown.err + machine.out + machine.err


def test_json_before_the_command_counts_too(gangline: Runner, stub: Stub) -> None:
    all_routes(stub)
    assert gangline("--json", "teams").json == gangline("teams", "--json").json


@pytest.mark.parametrize("command", [["list"], ["runs"], ["queue"], ["checkpoints", JOB]])
def test_nothing_is_told_on_stderr_and_empty_json_on_stdout(
    gangline: Runner, stub: Stub, command: list[str]
) -> None:
    stub.on("GET", JOBS, {"jobs": [], "cursor": None})
    stub.on("GET", "/v1/runs", {"runs": [], "cursor": None})
    stub.on("GET", "/v1/queue", {"queue": [], "pending_jobs": 0, "pending_gpus": 0})
    stub.on("GET", f"{ONE}/checkpoints", {"checkpoints": []})
    shown = gangline(*command)
    assert (shown.code, shown.out) == (0, "")
    assert shown.err
    assert gangline(*command, "--json").json in (
        [],
        {"queue": [], "cursor": None, "pending_jobs": 0, "pending_gpus": 0},
        {"checkpoints": [], "cursor": None, "interval_s": None, "advice": None},
    )


def test_lists_are_read_page_by_page(gangline: Runner, stub: Stub) -> None:
    stub.on("GET", JOBS, {"jobs": [job(job_id="a")] * 2, "cursor": "next"},
            {"jobs": [job(job_id="b")], "cursor": None})  # fmt: skip
    shown = gangline("list", "--json", "-n", "3", "--state", "running", "--state", "failed")
    assert [item["job_id"] for item in shown.json] == ["a", "a", "b"]
    first, second = [item.query for item in stub.asked]
    assert first["state"] == ["running", "failed"]
    assert (first["limit"], second["limit"], second["cursor"]) == (["3"], ["1"], ["next"])


def test_show_names_the_data_that_a_job_trains_without(gangline: Runner, stub: Stub) -> None:
    flag = {
        "attempt": 1, "rank": 3, "node_id": "node-a", "snapshot": "corpus@xxh3-0f",
        "shard": "shard-000002.tok", "block": 17, "reason": "holds other bytes", "flagged_at": NOW,
    }  # fmt: skip
    stub.on("GET", ONE, job(review=[flag]))
    shown = gangline("show", JOB)
    assert "for review" in shown.out
    assert "shard-000002.tok block 17: holds other bytes" in shown.out


def test_show_of_an_unknown_job(gangline: Runner, stub: Stub) -> None:
    stub.on("GET", ONE, problem(404, "not-found", "there is no such job, or it is not your team's"))
    shown = gangline("show", JOB)
    assert (shown.code, shown.out) == (102, "")
    assert "there is no such job" in shown.err


def test_what_there_is_not_is_told_where_to_look(gangline: Runner, stub: Stub) -> None:
    gone = problem(404, "not-found", "there is no such job, or it is not your team's")
    stub.on("GET", ONE, gone)
    stub.on("GET", f"{ONE}/explain", gone)
    stub.on("POST", f"/training-runs/{JOB}/checkpoints/7/restore", gone)
    stub.on("GET", "/v1/incidents", NO_INCIDENTS)
    ids, steps = f"gangline list --name {JOB}", f"gangline checkpoints {JOB}"
    for command, way_out in (
        (["show", JOB], ids), (["explain", JOB], ids), (["incidents", JOB], ids),
        (["restore", JOB, "7"], steps),
    ):  # fmt: skip
        shown = gangline(*command)
        assert (shown.code, shown.out) == (102, "")
        assert way_out in shown.err


def test_a_bad_filter_is_named_as_the_option_is(gangline: Runner, stub: Stub) -> None:
    wrong = {"field": "query.state.0", "message": "Input should be 'pending' or 'failed'"}
    stub.on("GET", JOBS, problem(422, "invalid", f"{wrong['field']}: {wrong['message']}"))
    shown = gangline("list", "--state", "bogus")
    assert (shown.code, shown.err) == (2, f"error: state: {wrong['message']}\n")


def test_events_of_a_job_are_all_or_the_newest_so_many(gangline: Runner, stub: Stub) -> None:
    many = [EVENT | {"type": f"job.{number}"} for number in range(60)]
    stub.on("GET", f"{ONE}/events", {"events": many, "cursor": None})
    assert len(gangline("events", "--job", JOB).out.splitlines()) == 60
    last = gangline("events", "--job", JOB, "-n", "2").out.splitlines()
    assert [line.split()[1] for line in last] == ["job.58", "job.59"]


def test_a_metric_that_there_is_not_is_no_silence(gangline: Runner, stub: Stub) -> None:
    path = f"/v1/runs/{JOB}/curves"
    stub.on("GET", path, {"curves": []}, CURVES)
    shown = gangline("metrics", JOB, "--name", "los")
    assert (shown.code, shown.out) == (2, "")
    assert "has no metric los" in shown.err
    assert "it has loss" in shown.err


def test_names_of_metrics_are_never_cut(gangline: Runner, stub: Stub) -> None:
    name = "checkpoint_written_bytes"
    points = [point(step, 838_848.0 + step) for step in range(200)]
    curve = {"run_id": JOB, "name": name, "points": points}
    stub.on("GET", f"/v1/runs/{JOB}/curves", {"curves": [curve]})
    lines = gangline("metrics", JOB).out.splitlines()
    assert lines[1].startswith(f"{name}  ")
    assert len(lines[1]) == 80


@pytest.mark.parametrize(
    ("options", "state", "code", "said"),
    [
        (["--rank", "2"], "failed", 2, "has no rank 2"),
        (["--attempt", "2"], "failed", 2, "has had no attempt 2"),
        (["--rank", "1"], "failed", 0, "rank 1 wrote nothing"),
        ([], "running", 0, "no lines yet"),
    ],
)
def test_no_lines_have_a_reason(
    gangline: Runner, stub: Stub, options: list[str], state: str, code: int, said: str
) -> None:
    stub.on("GET", f"{ONE}/logs", {"lines": [], "cursor": None})
    stub.on("GET", ONE, job(state))
    shown = gangline("logs", JOB, *options)
    assert (shown.code, shown.out) == (code, "")
    assert said in shown.err


def test_an_unknown_route_is_not_an_unknown_job(gangline: Runner) -> None:
    assert gangline("show", JOB).code == 1


def test_an_id_cannot_reach_another_route(gangline: Runner, stub: Stub) -> None:
    for bad in ("../teams", "a/b", "a?x=1", "..", "%2e%2e"):
        assert gangline("show", bad).code == 2
    assert stub.asked == []


def test_usage_errors_exit_with_2(gangline: Runner) -> None:
    assert gangline("show").code == 2
    assert gangline("nonsense").code == 2
    assert gangline("compare", "a").code == 2
    assert gangline("compare", "a", "a").code == 2
    assert gangline("priority", JOB, "101").code == 2


def test_a_new_team_needs_a_limit(gangline: Runner, stub: Stub) -> None:
    assert gangline("teams", "set", "new", "--guarantee", "1").code == 2
    stub.on("PUT", "/v1/teams/nlp", TEAM | {"gpu_limit": 16})
    assert gangline("teams", "set", "nlp", "--limit", "16").code == 0
    (body,) = stub.bodies("PUT", "/v1/teams/nlp")
    assert body == {
        "gpu_limit": 16,
        "gpu_guarantee": 4,
        "borrow_limit": 0,
        "parent": None,
        "weight": 1.0,
        "surplus": None,
        "gpu_types": [],
        "gpu_hours_per_month": None,
        "job_limit": 10_000,
    }, "others stay"


def test_the_fields_of_the_tree_are_set_and_cleared(gangline: Runner, stub: Stub) -> None:
    limits = {
        "weight": 2.0,
        "surplus": "reclaim_by_weight",
        "gpu_hours_per_month": 500.0,
        "job_limit": 50,
    }
    types = [{"gpu_type": "h100", "gpu_limit": 32}, {"gpu_type": "a100", "gpu_limit": None}]
    tree = {"parent": "lab", "gpu_types": types} | limits
    stub.on("PUT", "/v1/teams/nlp", TEAM | tree)
    options = ("--parent", "lab", "--weight", "2", "--gpu-types", "h100=32,a100")
    options += ("--surplus", "reclaim_by_weight")
    assert (
        gangline("teams", "set", "nlp", *options, "--gpu-hours", "500", "--job-limit", "50").code
        == 0
    )
    stub.on("GET", "/v1/teams", {"teams": [TEAM | tree]})
    cleared = ("--parent", "-", "--gpu-types", "-", "--gpu-hours", "0")
    assert gangline("teams", "set", "nlp", *cleared).code == 0
    first, second = stub.bodies("PUT", "/v1/teams/nlp")
    assert {key: first[key] for key in tree} == tree
    nothing = {"parent": None, "gpu_types": [], "gpu_hours_per_month": None, "weight": 2.0}
    nothing |= {"job_limit": 50, "surplus": "reclaim_by_weight"}
    assert {key: second[key] for key in tree} == nothing
    bad = gangline("teams", "set", "nlp", "--gpu-types", "h100=many")
    assert (bad.code, "'h100=many' is no GPU model" in bad.err) == (2, True)


def test_data_is_approved_withdrawn_and_listed(gangline: Runner, stub: Stub) -> None:
    path, name = "/v1/data-approvals", "corpus@xxh3-0f343b0931126a20f133d67c2b018a3b"
    use = {"snapshot": name, "project": "assistants", "purpose": "model-training"}
    options = ("data", "approve", name, "--project", "assistants", "--purpose", "model-training")
    stub.on("POST", path, use | {"approved": True})
    assert "is approved for assistants" in gangline(*options).out
    stub.on("POST", path, use | {"approved": False})
    assert "is not approved for assistants" in gangline(*options, "--withdraw").out
    assert stub.bodies("POST", path) == [use | {"approve": True}, use | {"approve": False}]
    stub.on("GET", path, {"approvals": [use | {"user": "ada", "approved_at": NOW}]})
    shown = gangline("data", "approvals").out
    assert [word in shown for word in ("corpus@", "assistants", "ada")] == [True, True, True]
    stub.on("GET", path, {"approvals": []})
    assert "nothing is approved" in gangline("data", "approvals", name).err


def test_data_is_approved_by_its_whole_name(gangline: Runner, stub: Stub) -> None:
    done = gangline("data", "approve", "corpus", "--project", "assistants", "--purpose", "training")
    assert (done.code, stub.asked) == (2, [])
    assert "gangline data show" in done.err


def test_a_purpose_is_read_whole(gangline: Runner, stub: Stub) -> None:
    use = {"snapshot": f"c2@xxh3-{'0' * 32}", "project": "assistants", "purpose": "model-training"}
    approval = use | {"user": "local-admin", "approved_at": NOW}
    stub.on("GET", "/v1/data-approvals", {"approvals": [approval]})
    shown = gangline("data", "approvals").out
    assert "assistants  model-training  local-ad" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_teams_are_shown_as_a_tree_within_80_columns(gangline: Runner, stub: Stub) -> None:
    lab = TEAM | {
        "team": "lab", "gpu_limit": 1024, "gpu_guarantee": 512, "gpus_used": 1000,
        "gpu_hours_this_month": 123_456.7, "gpu_hours_per_month": 500_000.0,
    }  # fmt: skip
    nlp = TEAM | {"parent": "lab", "borrow_limit": 16, "gpus_borrowed": 2}
    hidden = TEAM | {"team": "x" * 63, "parent": "not-mine", "gpu_hours_this_month": 0.25}
    stub.on("GET", "/v1/teams", {"teams": [lab, nlp, hidden]})
    lines = gangline("teams").out.splitlines()
    assert max(len(line) for line in lines) <= 80
    assert lines[1].startswith("lab  ")
    assert lines[1].endswith("123,456.7 of 500,000")
    assert lines[2].startswith("  nlp  ")
    assert " 2 of 16 " in lines[2]
    assert lines[3].startswith("xxx")
    assert lines[3].endswith(" 0.2")


def test_nodes_say_why_they_take_nothing(gangline: Runner, stub: Stub) -> None:
    unfit = NODE | {"status": "unfit", "why": "its disk has 0.20 GB left, and 1.00 are wanted"}
    stub.on("GET", "/v1/nodes", {"nodes": [NODE, unfit | {"node_id": "node-1"}]})
    shown = gangline("nodes")
    assert shown.err == "node-1 is unfit: its disk has 0.20 GB left, and 1.00 are wanted\n"


def test_nodes_say_which_agent_to_upgrade(gangline: Runner, stub: Stub) -> None:
    why = "its agent is 0.1.0, the oldest accepted is 0.3.0; upgrade the agent"
    stub.on("GET", "/v1/nodes", {"nodes": [NODE | {"status": "outdated", "why": why}]})
    shown = gangline("nodes")
    assert "outdated" in shown.out
    assert shown.err == f"node-0 is outdated: {why}\n"


def test_nodes_say_who_is_slow_there(gangline: Runner, stub: Stub) -> None:
    stub.on("GET", "/v1/nodes", {"nodes": [NODE | {"straggler": "rank 1 on node-0 works 0.8 s"}]})
    assert gangline("nodes").err == "slow: rank 1 on node-0 works 0.8 s\n"


def test_drain_and_its_undoing(gangline: Runner, stub: Stub) -> None:
    all_routes(stub)
    gangline("drain", "node-0")
    gangline("drain", "node-0", "--undo")
    gangline("drain", "node-0", "--cordon")
    assert stub.bodies("POST", "/v1/nodes/node-0/drain") == [
        {"drain": True},
        {"drain": False},
        {"drain": True, "move_jobs": False},
    ]


@pytest.mark.parametrize(("state", "code"), [("succeeded", 0), ("failed", 100), ("cancelled", 103)])
def test_watch_ends_with_the_jobs_exit_code(
    gangline: Runner, stub: Stub, monkeypatch: pytest.MonkeyPatch, state: str, code: int
) -> None:
    monkeypatch.setattr("gangline.commands.watch.REFRESH_S", 0.0)
    monkeypatch.setattr("gangline.commands.watch.LINGER_S", 0.0)
    all_routes(stub)
    stub.on("GET", ONE, job(step=1), job(step=1), job(step=2), job(state, failure=FAILURE, step=3))
    shown = gangline("watch", JOB)
    assert shown.code == code
    assert [line.split("  ")[1] for line in shown.out.splitlines()] == [
        "step 1/30", "step 2/30", "step 3/30",
    ]  # fmt: skip
    assert ("rank 1 on node-1 failed first" in shown.err) == (state == "failed")


def test_watch_waits_for_the_last_step_of_a_job_that_succeeded(
    gangline: Runner, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gangline.commands.watch.REFRESH_S", 0.0)
    all_routes(stub)
    stub.on("GET", ONE, job(step=28), job("succeeded", step=29), job("succeeded", step=30))
    shown = gangline("watch", JOB)
    assert shown.code == 0
    assert shown.out.splitlines()[-1].split("  ")[:2] == ["succeeded", "step 30/30"]


def test_watch_tells_of_a_failure_that_the_job_survives(
    gangline: Runner, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gangline.commands.watch.REFRESH_S", 0.0)
    failure = FAILURE | {"attempt": 1, "cause": "process", "action": "restart"}
    again = job(step=2, attempt=2, failure=failure)
    stub.on("GET", ONE, job(step=3), job(step=3), again, again, job("succeeded", failure=failure))
    stub.on("GET", f"/v1/runs/{JOB}/curves", CURVES)
    shown = gangline("watch", JOB)
    assert shown.err.splitlines()[0] == "attempt 1 failed (process, rank 1 first): restart"
    assert shown.err.count("attempt 1 failed") == 1


def test_watch_that_times_out_is_not_finished(gangline: Runner, stub: Stub) -> None:
    all_routes(stub)
    shown = gangline("watch", JOB, "--timeout", "0", "--json")
    assert shown.code == 101
    assert [item["state"] for item in shown.json_lines] == ["running"]


def test_logs_follow_over_a_broken_connection_each_line_once(
    gangline: Runner, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gangline.sse.FIRST_DELAY_S", 0.0)
    texts = [event("log", line, f"logs.0.{index}") for index, line in enumerate(LINES)]
    end = event("end", {"state": "succeeded"}, "logs.0.9")
    stub.on("GET", f"{ONE}/logs", Reply(stream="".join(texts[:2])),
            Reply(stream="".join(texts[1:]) + end))  # fmt: skip
    shown = gangline("logs", JOB, "-f", "--rank", "1", "--attempt", "1", "--tail", "10")
    assert shown.out.splitlines() == [
        f"[{line['rank']}] {line['text']}".replace("\x1b", "\ufffd") for line in LINES
    ]
    assert "trying again" in shown.err
    first, second = stub.asked
    assert first.query == {"follow": ["true"], "rank": ["1"], "attempt": ["1"], "tail": ["10"]}
    assert second.headers["last-event-id"] == "logs.0.1"


def test_metrics_follow(gangline: Runner, stub: Stub) -> None:
    step = {"step": 3, "attempt": 1, "rank": 0, "time_ms": 1, "metrics": {"loss": 1.5}}
    text = event("history", CURVES) + event("step", step, "steps.0.1") + event("end", {})
    stub.on("GET", f"/training-runs/{JOB}/metrics", Reply(stream=text))
    shown = gangline("metrics", JOB, "--name", "loss", "-f")
    assert shown.out.splitlines() == ["step 1  loss 4", "step 2  loss 2", "step 3  loss 1.5"]


def test_compare_draws_a_picture(gangline: Runner, stub: Stub, tmp_path: Path) -> None:
    all_routes(stub)
    picture = tmp_path / "curves.png"
    shown = gangline("compare", "a-1", "b-2", "--png", str(picture))
    assert shown.code == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "hyperparameters.lr  0.004  -" in shown.out
    assert [line.split() for line in shown.out.splitlines() if "est " in line] == [
        ["lowest", "2.5", "-"],
        ["highest", "5.5", "-"],
    ]
    assert gangline("compare", "a-1", "b-2", "--png", "x.exe").code == 2


def test_many_runs_are_compared_in_tables_that_fit(gangline: Runner, stub: Stub) -> None:
    ids = [f"a-{number}" for number in range(30)]
    shown = COMPARISON | {"runs": [RUN | {"run_id": run} for run in ids]}
    stub.on("GET", "/v1/runs/compare", shown)
    lines = gangline("compare", *ids).out.splitlines()
    assert lines[29].split() == ["AD", "a-29"]
    assert max(map(len, lines)) <= 80
    assert sum(line.startswith("differs") for line in lines) == 8


def test_a_comparison_as_a_page(gangline: Runner, stub: Stub, tmp_path: Path) -> None:
    evil = RUN | {"run_id": "b-2", "name": "<script>"}
    stub.on("GET", "/v1/runs/compare", COMPARISON | {"runs": [RUN, evil]})
    page = tmp_path / "runs.html"
    ran = gangline("compare", "a-1", "b-2", "--html", str(page), "--axis", "time")
    assert ran.code == 0, ran.err
    assert stub.asked[-1].query["axis"] == ["time"]
    text = page.read_text()
    assert "<svg" in text
    assert "&lt;script&gt;" in text
    assert "<script>" not in text


def test_runs_are_filtered_and_ordered_by_the_gateway(gangline: Runner, stub: Stub) -> None:
    all_routes(stub)
    gangline("runs", "--where", "metrics.loss < 2", "--order-by", "metrics.loss", "--order-by", "x")
    asked = stub.asked[-1].query
    assert (asked["where"], asked["order_by"]) == (["metrics.loss < 2"], ["metrics.loss", "x"])


def test_a_run_is_reproduced_and_its_loose_inputs_are_named(gangline: Runner, stub: Stub) -> None:
    spec = {
        "name": "a", "team": "nlp", "run": "true", "seed": 7, "code_diff_digest": "0" * 64,
        "resources": {"gpus": 4, "min_gpus": 2, "gpu_type": ["h100"]},
        "notify": [{"on": ["failed"], "webhook": "team"}],
    }  # fmt: skip
    stub.on("GET", ONE, job("succeeded", spec=spec, gpus=4, gpus_allocated=0, restarts=2))
    stub.on("POST", JOBS, Reply(job("pending"), 201))
    looked = gangline("reproduce", JOB, "--dry-run", "--json")
    loose = [item["field"] for item in looked.json["loose"]]
    assert loose == ["image", "workdir", "data_snapshot", "resources.gpus", "restarts"]
    assert gangline("reproduce", JOB, "-y").out.strip() == JOB
    sent = stub.asked[-1].json
    assert (sent["seed"], sent["code_diff_digest"]) == (7, "0" * 64)
    assert (sent["resources"]["gpus"], sent["resources"].get("min_gpus")) == (4, None)
    assert not sent.get("notify")


def test_events_name_their_topics_shortly(gangline: Runner, stub: Stub) -> None:
    all_routes(stub)
    gangline("events", "--topic", "gangline.scheduling", "--topic", "quota", "-n", "7")
    assert stub.asked[-1].query == {"topic": ["scheduling", "quota"], "limit": ["7"]}


def test_the_help_names_every_command_and_fits(gangline: Runner) -> None:
    shown = gangline("--help")
    for word in ("Jobs", "Runs", "Cluster", "Platform", *(name for name, *_ in COMMANDS)):
        assert word in shown.out
    assert max(len(line) for line in shown.out.splitlines()) <= 80


def test_a_command_starts_without_what_few_need() -> None:
    """Each of them costs every command a twentieth to several tenths of a second."""
    heavy = ("torch", "numpy", "confluent_kafka", "structlog", "jgo", "faust", "gangline_bus.kafka")
    code = f"import sys, gangline.main; sys.exit(str([n for n in {heavy} if n in sys.modules]))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.stderr == "[]\n"


def test_an_answer_that_is_no_gateways_is_told(gangline: Runner, stub: Stub) -> None:
    stub.on("GET", "/v1/queue", {"hello": "world"})
    shown = gangline("queue")
    assert shown.code == 1
    assert "is no Queue: queue" in shown.err
