"""The page of one job: its tabs read REST, and its actions change it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gangline_console.pages.job.tabs import MOST_COMPARED_LINES
from gangline_schemas.api.checkpoints import Checkpoint, CheckpointList
from gangline_schemas.api.incidents import IncidentPage, Totals
from gangline_schemas.api.jobs import RankList, RankRow
from gangline_schemas.api.logs import BusEvent, EventPage, LogLine, LogPage
from gangline_schemas.api.questions import Explanation
from gangline_schemas.api.runs import Comparison, Restored, RunPage
from gangline_schemas.job import JobSpec, TrialRef
from gangline_schemas.job_file import read_document
from support.builders.console import AT, console, csrf, job
from support.builders.runs import run
from support.fakes.console_gateway import problem

ID = "llama-0a1b"
PATH = f"/v1/training-jobs/{ID}"
PAGE = f"/console/jobs/{ID}"
EVIL = "<script>alert(1)</script>"
SPEC = JobSpec.model_validate(
    {"name": "llama", "team": "research", "run": f"echo '{EVIL}'", "resources": {"gpus": 8}}
)
LINE = LogLine(attempt=1, rank=3, line=7, node_id="n1", time=AT, stream="stderr", text=EVIL)
CHECKPOINT = Checkpoint(
    attempt=1, step=1000, status="committed", committed_at=AT, tiers=("nodes", "store"),
    world_size=8, size_bytes=14_200_000_000, write_s=12.5, blocked_s=0.4, retained=("latest",),
)  # fmt: skip


def event(kind: str, **data: Any) -> BusEvent:
    return BusEvent(
        topic="gangline.requests", partition=0, offset=1, id="1", type=kind, source="s",
        subject=ID, time=AT, data=data,
    )  # fmt: skip


def answers(**more: Any) -> dict[str, Any]:
    totals = Totals(
        incidents=0, recovered=0, recover_median_s=None, recover_p95_s=None, lost_gpu_s=0,
        by_class=[], by_node=[], by_job=[], by_shard=[],
    )  # fmt: skip
    found: dict[str, Any] = {
        f"GET {PATH}": job(spec=SPEC, name=EVIL),
        f"GET {PATH}/logs": LogPage(lines=[LINE], cursor=None),
        f"GET {PATH}/events": EventPage(
            events=[event("job.submitted", spec={"code_diff": f"-old\n+{EVIL}"})], cursor=None
        ),
        f"GET {PATH}/checkpoints": CheckpointList(checkpoints=[CHECKPOINT]),
        "GET /v1/incidents": IncidentPage(incidents=[], totals=totals, notices=[], cursor=None),
        f"GET {PATH}/ranks": RankList(
            attempt=1,
            ranks=[
                RankRow(
                    rank=3, node_id="n1", gpu=1, status="started", activity="training", step=1200,
                    quiet_s=0.5, busy_s=0.31, trouble="", gpu_utilization=97, last_line=LINE,
                )
            ],
        ),
        f"GET {PATH}/explain": Explanation(
            job_id=ID, state="running", code="running", message=EVIL, since=AT,
            evidence={"attempt": 1, "why": EVIL},
        ),
    }  # fmt: skip
    return found | {f"GET {PATH}/{name}": value for name, value in more.items()}


TABS = {
    "overview": ("Timeline", "1,200", "of 20,000"),
    "metrics": ("Smoothing",),
    "ranks": ("training", "n1", "310 ms", "97 %"),
    "logs": ("Errors only", f'href="{PATH}/logs.txt"'),
    "checkpoints": ("14.2 GB", "nodes, store", "latest", "Restore…"),
    "config": ("gpus: 8", "Changes that were not committed"),
    "events": ("job.submitted",),
    "explain": ("Evidence",),
}


@pytest.mark.parametrize("tab", TABS)
def test_each_tab_shows_its_part_and_escapes_what_users_wrote(tab: str) -> None:
    browser, _ = console(answers())

    answer = browser.get(f"{PAGE}?tab={tab}")

    assert answer.status_code == 200
    for text in TABS[tab]:
        assert text in answer.text, text
    assert EVIL not in answer.text
    assert 'aria-current="page"' in answer.text


def test_the_uncommitted_changes_of_two_runs_are_compared_as_text() -> None:
    theirs = [event("job.submitted", spec={"code_diff": "-old\n+a = 2"})]
    long = [event("job.submitted", spec={"code_diff": "+a\n" * (MOST_COMPARED_LINES + 1)})]
    browser, _ = console(
        {
            **answers(),
            "GET /v1/runs/compare": Comparison(runs=[], differences=[], metrics={}, curves=[]),
            "GET /v1/training-jobs/other-1/events": EventPage(events=theirs, cursor=None),
            "GET /v1/training-jobs/long-1/events": EventPage(events=long, cursor=None),
        }
    )
    assert "They are too long" in browser.get(f"{PAGE}?tab=config&with=long-1").text
    text = browser.get(f"{PAGE}?tab=config&with=other-1").text
    assert '<span class="add">++a = 2' in text
    assert '<span class="del">-+&lt;' in text
    assert "Neither" not in text
    same = browser.get(f"{PAGE}?tab=config&with={ID}").text
    assert "Both have the same uncommitted changes." in same


def test_a_job_that_waits_shows_its_place_and_expected_start_in_place_of_progress() -> None:
    waits = {
        "job_id": ID, "code": "capacity", "message": "needs 8 GPUs", "since": AT, "position": 3,
        "ahead_gpus": 16, "gpus": {"wanted": 8, "fewest": 8, "free": 2, "total": 16},
        "quota": {"limit": 64, "borrow_limit": 0, "ceiling": 60, "allocated": 32},
        "outlook": {"eta": AT},
    }  # fmt: skip
    explained = Explanation.model_validate(
        {
            "job_id": ID, "state": "pending", "code": "waiting", "message": "", "since": AT,
            "evidence": {}, "eta": AT, "eta_note": "a lower bound", "waits_for": waits,
        }
    )  # fmt: skip
    pending = job(state="pending", step=None, gpus_allocated=0)
    browser, _ = console({**answers(explain=explained), f"GET {PATH}": pending})

    text = browser.get(PAGE).text

    for shown in (
        ">3<", "16 GPUs wanted by jobs ahead", "a lower bound", "of 8 that it asks for",
        "32 GPUs", "of 60 now possible", 'href="?tab=explain"',
    ):  # fmt: skip
        assert shown in text, shown
    assert "Throughput" not in text


def test_an_unknown_tab_is_the_overview() -> None:
    browser, _ = console(answers())
    assert "Timeline" in browser.get(f"{PAGE}?tab=nothing").text


def test_deleted_checkpoints_are_shown_on_demand() -> None:
    gone = replace(CHECKPOINT, step=900, status="deleted", tiers=(), reason="newer ones")
    browser, _ = console(answers(checkpoints=CheckpointList(checkpoints=[CHECKPOINT, gone])))

    text = browser.get(f"{PAGE}?tab=checkpoints").text

    assert "1 deleted one not shown" in text
    assert "newer ones" not in text
    assert "newer ones" in browser.get(f"{PAGE}?tab=checkpoints&deleted=1").text


def test_the_overview_is_there_while_history_is_away() -> None:
    away = problem(503, "no-history", "ClickHouse is away")
    browser, _ = console(answers(logs=away, events=away, checkpoints=away))

    text = browser.get(PAGE).text

    assert "The log cannot be read now" in text
    assert "The timeline cannot be read now" in text
    assert "1,200" in text


def test_the_job_file_is_the_spec_again() -> None:
    browser, _ = console(answers())

    answer = browser.get(f"{PAGE}/job.yaml")

    assert answer.headers["content-type"].startswith("text/yaml")
    assert JobSpec.model_validate(read_document(answer.text).content) == SPEC


def test_submitting_again_sends_the_same_spec_once() -> None:
    made = job("llama-2", spec=SPEC)
    browser, gateway = console({**answers(), "POST /v1/training-jobs": made})

    answer = browser.post(f"{PAGE}/again", data={"csrf": csrf(), "key": "k1"})

    assert answer.headers["location"] == "/console/jobs/llama-2?done=again"
    body = next(item[2] for item in gateway.asked if item[0] == "POST /v1/training-jobs")
    assert JobSpec.model_validate(body) == SPEC
    assert gateway.keys == ["k1"]


def test_the_job_of_a_trial_is_submitted_again_as_a_job_of_its_own() -> None:
    trial = TrialRef(study_id="lr-1", number=3, metrics=("loss",))
    of_trial = job(ID, spec=SPEC.model_copy(update={"trial": trial}))
    made = {**answers(), f"GET {PATH}": of_trial, "POST /v1/training-jobs": job("llama-2")}
    browser, gateway = console(made)

    browser.post(f"{PAGE}/again", data={"csrf": csrf(), "key": "k1"})

    body = next(item[2] for item in gateway.asked if item[0] == "POST /v1/training-jobs")
    assert JobSpec.model_validate(body) == SPEC
    file = browser.get(f"{PAGE}/job.yaml").text
    assert JobSpec.model_validate(read_document(file).content) == SPEC


def test_a_restore_says_what_is_lost_before_it_asks_rest() -> None:
    restored = Restored(run_id=ID, step=1000, from_run=ID, state="running")
    path = f"POST /training-runs/{ID}/checkpoints/1000/restore"
    browser, gateway = console({**answers(), path: restored})

    asked = browser.post(f"{PAGE}/restore", data={"csrf": csrf(), "step": "1000"})
    assert "200 steps of training are lost" in asked.text
    assert not any(item[0] == path for item in gateway.asked)

    done = browser.post(f"{PAGE}/restore", data={"csrf": csrf(), "step": "1000", "sure": "1"})
    assert done.headers["location"] == f"{PAGE}?done=restored"


def test_an_unpin_says_what_may_be_lost_before_it_asks_rest() -> None:
    path = f"POST {PATH}/checkpoints/1000/pin"
    browser, gateway = console({**answers(), path: CHECKPOINT})
    fields = {"csrf": csrf(), "step": "1000", "pinned": "0"}

    assert "it is deleted" in browser.post(f"{PAGE}/pin", data=fields).text
    assert not any(item[0] == path for item in gateway.asked)

    done = browser.post(f"{PAGE}/pin", data={**fields, "sure": "1"})
    assert done.headers["location"] == f"{PAGE}?done=unpinned&tab=checkpoints"
    assert gateway.asked[-1][2] == {"pinned": False}


@pytest.mark.parametrize(
    ("gpu_seconds", "running", "price", "past", "shown"),
    [
        (0.0, 8 * 1800.0, 16.0, None, ("4 GPU-h", 'Cost</dt><dd><span class="value">8<')),
        (7200.0, 8 * 1800.0, 16.0, 5.5, ("6 GPU-h", ">13.5<")),
        (7200.0, 0.0, None, 5.5, ("2 GPU-h", ">5.5<")),
        (7200.0, 8 * 1800.0, None, 5.5, ("6 GPU-h", "its GPUs have no price")),
        (7200.0, 8 * 1800.0, 16.0, None, ("6 GPU-h", "its GPUs have no price")),
    ],
)
def test_gpu_time_and_cost_have_the_attempt_that_runs(
    gpu_seconds: float, running: float, price: float | None, past: float | None,
    shown: tuple[str, ...],
) -> None:  # fmt: skip
    found = job(gpu_seconds=gpu_seconds, running_gpu_seconds=running, price_per_hour=price)
    history = RunPage(runs=[run(ID).model_copy(update={"cost": past})], cursor=None)
    browser, gateway = console({**answers(), f"GET {PATH}": found, "GET /v1/runs": history})

    text = browser.get(PAGE).text

    for item in shown:
        assert item in text, item
    assert any(item[0] == "GET /v1/runs" for item in gateway.asked) == (gpu_seconds > 0)


@pytest.mark.parametrize(
    ("action", "fields", "path", "body", "goes"),
    [
        ("priority", {"priority": "7"}, "priority", {"priority": 7}, "?done=priority"),
        (
            "pin", {"step": "1000", "pinned": "1"}, "checkpoints/1000/pin", {"pinned": True},
            "?done=pinned&tab=checkpoints",
        ),
    ],
)  # fmt: skip
def test_actions_change_the_job(
    action: str, fields: dict[str, str], path: str, body: object, goes: str
) -> None:
    answer_of = CHECKPOINT if action == "pin" else job(spec=SPEC)
    browser, gateway = console({**answers(), f"POST {PATH}/{path}": answer_of})

    answer = browser.post(f"{PAGE}/{action}", data={"csrf": csrf(), **fields})

    assert answer.headers["location"] == f"{PAGE}{goes}"
    assert gateway.asked[-1][2] == body


def test_a_number_that_is_none_is_refused() -> None:
    browser, gateway = console(answers())

    answer = browser.post(f"{PAGE}/priority", data={"csrf": csrf(), "priority": "high"})

    assert answer.status_code == 422
    assert "give a whole number" in answer.text
    assert not any(item[0].startswith("POST") for item in gateway.asked)


def test_a_run_that_an_mlflow_client_made_is_shown_by_mlflow() -> None:
    there, elsewhere = "ab" * 16, "cd" * 16
    browser, gateway = console({"GET /v1/runs": RunPage(runs=[run(there)], cursor=None)})

    answer = browser.get(f"/console/jobs/{there}")

    assert answer.headers["location"] == f"/mlflow/teams/nlp/#/runs/{there}"
    assert gateway.asked[-1][1]["where"] == f"run_id = '{there}'"
    assert browser.get("/console/jobs/llama-0").status_code == 404
    nothing, _ = console({"GET /v1/runs": RunPage(runs=[], cursor=None)})
    assert nothing.get(f"/console/jobs/{elsewhere}").status_code == 404
