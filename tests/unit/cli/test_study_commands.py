"""`gangline study`: what it asks, tables that fit, exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gangline_schemas.study_file import StudySpec
from support.builders.studies import SPEC
from support.fakes.stub_gateway import Stub
from support.harnesses.cli_run import Runner

ID = "a-study-with-a-long-name-0123456789-0123456789"
AT = "2026-11-21T08:00:00Z"
COUNTS = {
    "limit": 8, "waiting": 1, "running": 1, "paused": 0, "completed": 2, "pruned": 1, "failed": 1
}  # fmt: skip
BEST: dict[str, Any] = {
    "number": 2, "job_id": f"{ID}-t2", "value": 1.5, "values": {"eval_loss": 1.5},
    "parameters": {"lr": 0.03, "opt": "adam"},
}  # fmt: skip
STUDY: dict[str, Any] = {
    "study_id": ID, "name": "lr-sweep", "team": "a-team-with-a-long-name", "project": None,
    "user": "ada", "state": "running", "reason": "", "message": "",
    "objectives": [{"metric": "eval_loss", "direction": "minimize"}], "sampler": "tpe",
    "stopping": "asha", "created_at": AT, "ended_at": None, "trials": COUNTS, "best": BEST,
    "gpu_hours": 3.5, "gpu_hours_limit": 10.0, "experiment": f"nlp/default/{ID}",
}  # fmt: skip
DETAIL = {**STUDY, "seed": 7, "spec": StudySpec.model_validate(SPEC).data()}
ENDED = {**DETAIL, "state": "ended", "reason": "trials", "ended_at": AT}
TRIAL: dict[str, Any] = {
    "number": 2, "job_id": f"{ID}-t2", "state": "completed", "reason": "",
    "parameters": {"lr": 0.03, "opt": "adam"}, "values": {"eval_loss": 1.5}, "value": 1.5,
    "feasible": True, "step": 90, "rung": 2, "bracket": 0, "parent": None, "parts": 2,
    "by": "tpe", "attempt": 1, "gpus": 0, "gpu_hours": 0.5, "proposed_at": AT, "ended_at": AT,
}  # fmt: skip
PLAN: dict[str, Any] = {
    "study_id": ID, "trials": 8, "points": None, "notes": [], "rejected": False,
    "job": {"name": "x", "team": "nlp", "command": ["python"], "resources": {"gpus": 1}},
    "spec": DETAIL["spec"],
}  # fmt: skip
PATH = f"/v1/studies/{ID}"


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "study.yaml"
    path.write_text(json.dumps(SPEC))
    return str(path)


def fits(text: str) -> bool:
    return max(map(len, text.splitlines())) <= 80


def test_a_study_is_submitted_once_by_its_key(stub: Stub, gangline: Runner, file: str) -> None:
    stub.on("POST", "/v1/studies", PLAN, DETAIL)
    done = gangline("study", "submit", file, "-y", "--idempotency-key", "k1")
    assert (done.code, done.out) == (0, f"{ID}\n")
    assert fits(done.err)
    plan, sent = stub.asked[-2:]
    assert plan.json == sent.json
    assert sent.headers["idempotency-key"] == "k1"


def test_a_dry_run_starts_nothing_and_tells_a_rejection(
    stub: Stub, gangline: Runner, file: str
) -> None:
    refused = {**PLAN, "rejected": True, "notes": ["the job would be rejected: no such team"]}
    stub.on("POST", "/v1/studies", refused)
    done = gangline("study", "submit", file, "--dry-run")
    assert done.code == 2
    assert "no such team" in done.out
    assert len(stub.asked) == 1


@pytest.mark.parametrize(
    ("ended", "code"),
    [
        (ENDED, 0),
        ({**ENDED, "reason": "failed", "best": None}, 100),
        ({**ENDED, "reason": "stopped"}, 103),
    ],
)
def test_waiting_ends_with_a_code(
    stub: Stub, gangline: Runner, file: str, ended: dict[str, Any], code: int
) -> None:
    stub.on("POST", "/v1/studies", PLAN, DETAIL)
    stub.on("GET", PATH, DETAIL, ended)
    done = gangline("study", "submit", file, "-y", "--wait")
    assert (done.code, done.out) == (code, f"{ID}\n")
    assert "best eval_loss 1.5 by trial 2" in done.err or ended["best"] is None


def test_waiting_no_longer_than_asked(stub: Stub, gangline: Runner, file: str) -> None:
    stub.on("POST", "/v1/studies", PLAN, DETAIL)
    stub.on("GET", PATH, DETAIL)
    assert gangline("study", "submit", file, "-y", "--wait", "--timeout", "0").code == 101


def test_lists_and_tables_fit(stub: Stub, gangline: Runner) -> None:
    stub.on("GET", "/v1/studies", {"studies": [STUDY], "cursor": None})
    stub.on("GET", PATH, DETAIL)
    wide = {**TRIAL, "parameters": {f"parameter_{n}_with_a_name": 1e-5 / 3 for n in range(9)}}
    stub.on("GET", f"{PATH}/trials", {"trials": [TRIAL, wide], "cursor": None})
    assert ID in gangline("study", "list", "--state", "running").out
    shown = gangline("study", "show", ID).out
    assert "6 of 8: 1 waiting, 1 running, 2 completed, 1 pruned, 1 failed" in shown
    assert fits(shown)
    table = gangline("study", "trials", ID, "--order-by", "value").out
    assert fits(table)
    assert stub.asked[-1].query["order_by"] == ["value"]
    assert gangline("--json", "study", "trials", ID).json[0]["parameters"]["opt"] == "adam"


def test_the_best_trial_and_how_it_came_to_be(stub: Stub, gangline: Runner) -> None:
    point = {"gpu_hours": 0.5, "at": AT, "number": 0, "value": 2.0}
    course = {
        "metric": "eval_loss", "direction": "minimize", "points": [point], "gpu_hours": 3.5
    }  # fmt: skip
    stub.on("GET", PATH, DETAIL, {**DETAIL, "best": None})
    stub.on("GET", f"{PATH}/best-so-far", course)
    done = gangline("study", "best", ID)
    assert "after 0.5 GPU-hours: 2 by trial 0" in done.out
    assert f"gangline reproduce {ID}-t2" in done.out
    none = gangline("study", "best", ID)
    assert (none.code, "no completed trial yet" in none.err) == (101, True)


def test_the_pareto_front_of_two_objectives(stub: Stub, gangline: Runner) -> None:
    goals = [*STUDY["objectives"], {"metric": "p99_ms", "direction": "minimize"}]
    stub.on("GET", PATH, {**DETAIL, "objectives": goals})
    both = {**TRIAL, "values": {"eval_loss": 1.5, "p99_ms": 12.0}}
    stub.on("GET", f"{PATH}/pareto", {"objectives": goals, "trials": [both]})
    done = gangline("study", "best", ID)
    assert done.out.splitlines()[0].split()[:3] == ["TRIAL", "eval_loss", "p99_ms"]


def test_importances_are_bars_and_say_when_they_say_little(stub: Stub, gangline: Runner) -> None:
    shares = [{"name": "lr", "importance": 0.9}, {"name": "opt", "importance": 0.1}]
    stub.on("GET", f"{PATH}/importance", {"metric": "m", "trials": 5, "parameters": shares})
    done = gangline("study", "importance", ID)
    assert "90.0 %  ███" in done.out
    assert "it says little" in done.err


def test_curves_are_drawn_with_what_is_left_out(stub: Stub, gangline: Runner) -> None:
    curve = {"number": 2, "state": "running", "steps": [1, 2, 3], "values": [3.0, None, 1.5]}
    none = {"number": 3, "state": "running", "steps": [], "values": []}
    found = {"metric": "eval_loss", "direction": "minimize", "rungs": [1, 3], "left_out": 4}
    stub.on("GET", f"{PATH}/curves", {**found, "curves": [curve, none]})
    done = gangline("study", "curves", ID, "--limit", "2")
    head, first, second = done.out.splitlines()
    assert head.split() == ["TRIAL", "STATE", "STEP", "BEST", "eval_loss"]
    assert first.split() == ["2", "running", "3", "1.5", "█▁"]
    assert second.split() == ["3", "running", "-", "-"]
    assert "at steps 1, 3" in done.err
    assert "4 further trials" in done.err


def test_a_journal_without_some_curves_says_so(
    stub: Stub, gangline: Runner, tmp_path: Path
) -> None:
    stub.on("GET", PATH, DETAIL)
    stub.on("GET", f"{PATH}/trials", {"trials": [TRIAL], "cursor": None})
    curves = {"metric": "eval_loss", "direction": "minimize", "rungs": [], "curves": []}
    stub.on("GET", f"{PATH}/curves", {**curves, "left_out": 1})
    done = gangline("study", "export", ID, "--journal", str(tmp_path / "j"))
    assert "without the curves of 1 further trial" in done.err
    assert done.code == 0


def test_parallel_coordinates_are_a_line_for_each_axis(stub: Stub, gangline: Runner) -> None:
    axes = [
        {"kind": "param", "name": "lr", "texts": [], "low": 1e-4, "high": 1.0},
        {"kind": "param", "name": "opt", "texts": ["adam", "sgd"], "low": None, "high": None},
        {"kind": "metric", "name": "loss", "texts": [], "low": 1.0, "high": 3.0},
    ]
    rows = [[1e-2, "sgd", 1.0], [1e-4, "adam", 2.0], [1.0, None, 3.0]]
    runs = [
        {"run_id": f"{ID}-t{at}", "name": f"trial {at}", "state": "completed", "values": row}
        for at, row in enumerate(rows)
    ]
    stub.on("GET", f"{PATH}/parallel", {"axes": axes, "runs": runs})
    done = gangline("study", "parallel", ID)
    assert fits(done.out)
    _head, lr, opt, loss = done.out.splitlines()
    assert lr.split()[-1] == "▅▁█", "of more than two decades: by the logarithm"
    assert opt.split() == ["opt", "adam", "sgd", "█▁"]
    assert loss.split()[-1] == "▁▅█"


def test_a_study_is_stopped(stub: Stub, gangline: Runner) -> None:
    stub.on("POST", f"{PATH}/stop", {**DETAIL, "state": "ending", "reason": "stopped"})
    assert "its jobs are cancelled" in gangline("study", "stop", ID).out
