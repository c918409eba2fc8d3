"""Commands against the documented JSON: what they ask, what they print, how they exit."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from support.fakes.stub_gateway import NO_INCIDENTS, NOW, TOKEN, Stub, job, problem
from support.fixtures.commands import EVENT, JOB, JOBS, ONE, all_routes
from support.harnesses.cli_run import Runner

COMMANDS = [
    ["list"], ["show", JOB], ["explain", JOB], ["logs", JOB], ["ranks", JOB], ["checkpoints", JOB],
    ["events"], ["events", "--job", JOB], ["runs"], ["compare", "a-1", "b-2"], ["metrics", JOB],
    ["queue"], ["nodes"], ["teams"], ["cancel", JOB], ["priority", JOB, "10"],
    ["restore", JOB, "20"], ["drain", "node-0"], ["teams", "set", "nlp", "--limit", "16"],
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
        dict.fromkeys(("prefix", "cursor", "interval_s", "advice")) | {"checkpoints": []},
    )


def test_lists_are_read_page_by_page(gangline: Runner, stub: Stub) -> None:
    stub.on("GET", JOBS, {"jobs": [job(job_id="a")] * 2, "cursor": "next"},
            {"jobs": [job(job_id="b")], "cursor": None})  # fmt: skip
    shown = gangline("list", "--json", "-n", "3", "--state", "running", "--state", "failed")
    assert [item["job_id"] for item in shown.json] == ["a", "a", "b"]
    first, second = [item.query for item in stub.asked]
    assert first["state"] == ["running", "failed"]
    assert (first["limit"], second["limit"], second["cursor"]) == (["3"], ["1"], ["next"])


def test_a_limit_of_any_size_is_one(gangline: Runner, stub: Stub) -> None:
    stub.on("GET", JOBS, {"jobs": [job()], "cursor": None})
    assert len(gangline("list", "--json", "-n", "9" * 20).json) == 1


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


@pytest.mark.parametrize(
    ("options", "state", "code", "said"),
    [
        (["--rank", "2"], "failed", 2, "has no rank 2"),
        (["--attempt", "2"], "failed", 2, "has had no attempt 2"),
        (["--rank", "1"], "failed", 0, "rank 1 wrote nothing"),
        ([], "running", 0, "no lines yet"),
        (["--errors", "--contains", "nan"], "running", 0, "no line matches"),
        (["--errors", "--rank", "2"], "failed", 2, "has no rank 2"),
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


def test_the_queue_has_expected_starts_where_the_gateway_can_say(
    gangline: Runner, stub: Stub
) -> None:
    all_routes(stub)
    assert "capacity" in gangline("queue").out, "the order is shown without them"
    start = (datetime.now(UTC) + timedelta(minutes=25, seconds=30)).isoformat()
    expected = {"position": 1, "job_id": JOB, "gpus": 4, "start": start}
    shard = {"shard": 0, "order": "fair", "gpus_free": 0, "gpus_total": 4, "starts": [expected]}
    stub.on("GET", "/v1/queue/outlook", {"as_of": NOW, "shards": [shard]})
    shown = gangline("queue").out
    assert " 25 min " in shown
    assert max(len(line) for line in shown.splitlines()) <= 80


def test_an_answer_that_is_no_gateways_is_told(gangline: Runner, stub: Stub) -> None:
    stub.on("GET", "/v1/queue", {"hello": "world"})
    shown = gangline("queue")
    assert shown.code == 1
    assert "is no Queue: queue" in shown.err
