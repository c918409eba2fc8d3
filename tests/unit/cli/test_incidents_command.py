"""`gangline incidents`: what it asks, tables and sentences that fit, totals, nothing to show."""

from __future__ import annotations

from typing import Any

import pytest

from support.fakes.stub_gateway import Stub, incident, job
from support.harnesses.cli_run import Runner

ROUTE = "/v1/incidents"
JOB = "llama-sft-with-a-rather-long-name-0123456789"


OPEN = incident(
    attempt=2, outcome="open", failure_class="out_of_memory", node_id="", recover_s=None,
    next_attempt=3, allocated_at=None, running_at=None, first_step_at=None, last_step=None,
    committed_step=None, resume_step=None, review=True, avoid_nodes=["node-1", "node-2"],
)  # fmt: skip
TOTALS = {
    "incidents": 31, "recovered": 29, "recover_median_s": 1.25, "recover_p95_s": 95.0,
    "lost_gpu_s": 36_900.0,
    "by_class": [{"name": "process", "incidents": 30, "lost_gpu_s": 1.0}],
    "by_node": [{"name": f"node-{n}", "incidents": 9, "lost_gpu_s": 1.0} for n in range(20)],
    "by_job": [{"name": "llama", "incidents": 31, "lost_gpu_s": 1.0}],
    "by_shard": [{"name": "corpus@sha256-9f/tokens-0003", "incidents": 2, "lost_gpu_s": 0.0}],
}  # fmt: skip


def page(*items: dict[str, Any], cursor: str | None = None) -> dict[str, Any]:
    return {"incidents": [*items], "totals": TOTALS, "notices": [], "cursor": cursor}


def test_the_table_and_the_totals_fit(stub: Stub, gangline: Runner) -> None:
    stub.on("GET", ROUTE, page(OPEN, incident()))
    done = gangline("incidents")
    lines = done.out.splitlines()
    assert max(map(len, lines[3:])) <= 80
    assert JOB in lines[1], "to be copied"
    assert " ".join(lines[0].split()) == "AGE JOB TRY CLASS NODE OUTCOME RECOVERY GPU-H"
    assert lines[2].endswith("process        nod…  recovered  2 min 4 s   0.36")
    text = " ".join(done.out.split())
    assert text.endswith(
        "by job: llama 31 blocks of data left out, by shard: corpus@sha256-9f/tokens-0003 2"
    )
    assert (
        "31 incidents (2 shown); 29 recovered, in 1.2 s (median), 1 min 35 s (P95); "
        "10.25 GPU-hours lost by class: process 30 by node: node-0 9, node-1 9," in text
    )


def test_of_one_job_each_failure_is_told_in_words(stub: Stub, gangline: Runner) -> None:
    stub.on("GET", ROUTE, page(OPEN, incident()))
    done = gangline("incidents", JOB)
    lines = done.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert " ".join(lines[0].split()) == "AGE TRY CLASS NODE OUTCOME RECOVERY GPU-H"
    text = " ".join(done.out.split())
    assert "was ended by SIGKILL step 97 reached, 60 saved; 40.0 s of work lost" in text
    assert "attempt 2 from step 60: GPUs after 0.2 s, ranks 1.5 s, a step 2 min 4 s" in text
    assert "flagged: check the data no step reached, nothing was saved" in text
    assert "attempt 3 from the beginning: waits for GPUs avoided: node-1, node-2" in text


def test_what_is_asked(stub: Stub, gangline: Runner) -> None:
    stub.on("GET", ROUTE, page(incident(), cursor="c"), page(incident(attempt=2)))
    gangline(
        "incidents", JOB, "--team", "nlp", "--node", "node-2", "--since", "2026-11-01", "-n", "2"
    )
    first, second = [asked.query for asked in stub.asked]
    assert first == {
        "job": [JOB], "team": ["nlp"], "node": ["node-2"], "limit": ["2"],
        "since": ["2026-11-01T00:00:00+00:00"],
    }  # fmt: skip
    assert second["cursor"] == ["c"]


def test_json_has_the_incidents_and_the_totals(stub: Stub, gangline: Runner) -> None:
    stub.on("GET", ROUTE, page(incident()))
    found = gangline("incidents", "--json").json
    assert found["incidents"][0]["recover_s"] == 124.0
    assert found["totals"]["by_node"][0] == {"name": "node-0", "incidents": 9, "lost_gpu_s": 1.0}


@pytest.mark.parametrize(
    ("arguments", "says"), [((), "nothing has failed"), ((JOB,), f"{JOB} has not failed")]
)
def test_nothing_failed(
    stub: Stub, gangline: Runner, arguments: tuple[str, ...], says: str
) -> None:
    stub.on("GET", ROUTE, page())
    stub.on("GET", f"/v1/training-jobs/{JOB}", job())
    done = gangline("incidents", *arguments)
    assert (done.code, done.out) == (0, "")
    assert says in done.err


def test_a_time_that_is_none_is_refused(gangline: Runner) -> None:
    done = gangline("incidents", "--since", "never")
    assert done.code == 2
    assert "--since" in done.err


HANG = incident(
    failure_class="hang", message="no rank made progress: rank 1 on node-2 was quiet for 9 s"
)
NOTICE = {
    "team": "nlp", "job_id": JOB, "attempt": 2, "kind": "straggling", "rank": 3, "node_id": "n",
    "message": "rank 3 on n works 0.840 s a step before it waits for others; its gang's median is "
    "0.410 s", "noted_at": "2026-11-21T10:00:00Z",
}  # fmt: skip


def test_an_attempt_is_told_with_what_its_ranks_were_doing(stub: Stub, gangline: Runner) -> None:
    ranks = [
        {"rank": 0, "node_id": "node-1", "pid": 7, "state": "sleeping", "last_step": 20,
         "stacks": "process 7, sleeping\nthread MainThread\n  wait (train.py:3)", "missing": None},
        {"rank": 1, "node_id": "node-2", "pid": 8, "state": "stopped", "last_step": None,
         "stacks": "", "missing": "py-spy took too long"},
    ]  # fmt: skip
    stub.on("GET", f"{ROUTE}/{JOB}/2", {"incident": HANG, "stacks": ranks})
    lines = gangline("incidents", JOB, "--attempt", "2").out.splitlines()
    first, second = (lines.index(line) for line in lines if line.startswith("rank "))
    assert lines[first:second] == [
        "rank 0 on node-1, sleeping, after step 20",
        "  process 7, sleeping",
        "  thread MainThread",
        "    wait (train.py:3)",
        "",
    ]
    assert lines[second:] == [
        "rank 1 on node-2, stopped, before its first step",
        "  py-spy took too long",
    ]


def test_an_attempt_is_of_a_job(gangline: Runner) -> None:
    done = gangline("incidents", "--attempt", "2")
    assert done.code == 2
    assert "--attempt is of a job" in done.err


def test_of_a_hang_the_way_to_its_stacks_is_told(stub: Stub, gangline: Runner) -> None:
    stub.on("GET", ROUTE, page(HANG))
    assert "what its ranks did: --attempt 1" in gangline("incidents", JOB).out


def test_what_was_noticed_is_told_also_when_nothing_failed(stub: Stub, gangline: Runner) -> None:
    stub.on("GET", ROUTE, page() | {"notices": [NOTICE]})
    done = gangline("incidents")
    text = " ".join(done.out.split())
    assert f"ago {JOB} (attempt 2) straggling: rank 3 on n works 0.840 s a step" in text
    assert max(map(len, done.out.splitlines())) <= 80
    assert gangline("incidents", "--json").json["notices"][0]["rank"] == 3
