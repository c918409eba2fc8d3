"""`gangline ettr`: the guide's examples, JSON, what a job measured, and bad input."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gangline.commands import ettr
from gangline_checkpoints.core.policy.ettr import Costs, expected
from support.fakes.stub_gateway import NO_INCIDENTS, Stub, incident
from support.harnesses.cli_run import Runner, runner

GUIDE = (Path(__file__).parents[3] / "docs" / "guides" / "effective-time.md").read_text()
EXAMPLES = re.findall(r"^```\n\$ gangline (ettr[^\n]*)\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
JOB = "train-fsdp-6a292f7d96"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Runner:
    return runner(capsys)


@pytest.mark.parametrize(("command", "shown"), EXAMPLES, ids=[command for command, _ in EXAMPLES])
def test_the_guides_examples_are_what_it_says(run: Runner, command: str, shown: str) -> None:
    done = run(*command.split())
    assert (done.code, done.out) == (0, shown)
    assert max(len(line) for line in done.out.splitlines()) <= 80


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 2


def test_json_holds_the_closed_form_and_the_simulated_runs(run: Runner) -> None:
    options = ("--write", "1", "--verify", "2", "--blocked", "0.1", "--detect", "5")
    (found,) = run("ettr", "--gpus", "1024", *options, "--restart", "10", "--json").json
    costs = Costs(7.9 * 3600, 0.1 + 0.1 * 1.0, 3.0, 5.0, 10.0)
    assert found["mttf_s"] == pytest.approx(costs.mttf_s)
    assert found["ettr"] == pytest.approx(expected(costs, found["interval_s"]).ettr)
    simulated = found["simulated"]
    assert simulated["p5"] < simulated["mean"] < simulated["p95"]
    assert simulated["mean"] == pytest.approx(found["ettr"], abs=0.001)
    parts = ("detecting", "restarting", "lost_work", "saving", "ettr")
    assert sum(found[name] for name in parts) == pytest.approx(1.0)


@pytest.fixture
def _few_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the closed form alone is looked at."""
    monkeypatch.setattr(ettr, "RUNS", ettr.LEAST_RUNS)


@pytest.mark.usefixtures("_few_runs")
def test_a_users_interval_and_failure_rate_are_taken(run: Runner) -> None:
    asked = ("ettr", "--gpus", "64,128", "--mttf-hours", "10", "--mttf-gpus", "64", "--json")
    small, large = run(*asked, "--interval", "300").json
    assert (small["mttf_s"], large["mttf_s"]) == (36_000.0, 18_000.0)
    assert [row["limited_by"] for row in (small, large)] == ["option", "option"]
    assert small["interval_s"] == 300.0
    advised, _ = run(*asked).json
    assert advised["ettr"] > small["ettr"]


@pytest.mark.usefixtures("_few_runs")
def test_a_jobs_own_measurements_are_taken(gangline: Runner, stub: Stub) -> None:
    checkpoint = {
        "attempt": 1, "step": 10, "status": "committed", "committed_at": "2026-11-21T08:00:00Z",
        "world_size": 64, "size_bytes": 1, "write_s": 30.0, "blocked_s": 1.0, "verify_s": 10.0,
    }  # fmt: skip
    stub.on("GET", f"/v1/training-jobs/{JOB}/checkpoints", {
        "checkpoints": [checkpoint, checkpoint | {"status": "abandoned", "write_s": 900.0}],
        "advice": {
            "attempt": 1, "interval_s": 9.0, "limited_by": "optimum", "mtbf_s": 7200.0,
            "cost_s": 1.0, "busy_s": 1.0, "failures": 1.0, "lost_s": 1.0, "reason": "", "risk": "",
            "advised_at": "2026-11-21T10:00:00Z",
        },
    })  # fmt: skip
    failed = [incident(job_id=JOB, recover_s=seconds) for seconds in (20.0, 8.0, 12.0, None)]
    stub.on("GET", "/v1/incidents", NO_INCIDENTS | {"incidents": failed})
    done = gangline("ettr", "--job", JOB, "--gpus", "64", "--detect", "2", "--json")
    (found,) = done.json
    assert f"measured of {JOB}: 1 saves, 3 restarts" in done.err
    costs = Costs(7200.0, 4.0, 40.0, 2.0, 12.0)  # blocked and a tenth of the write; the median
    assert found["mttf_s"] == pytest.approx(costs.mttf_s)
    assert found["ettr"] == pytest.approx(expected(costs, found["interval_s"]).ettr)
    own = gangline("ettr", "--job", JOB, "--gpus", "64", "--restart", "100", "--json").json
    assert own[0]["restarting"] > found["restarting"]


def test_a_job_without_a_checkpoint_has_nothing_to_measure(gangline: Runner, stub: Stub) -> None:
    stub.on("GET", f"/v1/training-jobs/{JOB}/checkpoints", {"checkpoints": []})
    done = gangline("ettr", "--job", JOB)
    assert (done.code, done.out) == (102, "")
    assert f"{JOB} has no checkpoint to measure" in done.err


BAD = [
    (("--gpus", "many"), "give numbers with commas"),
    (("--gpus", "0"), "give numbers with commas"),
    (("--interval", "0.1"), "an interval of 0.1 s is not above a save's"),
    (("--mttf-hours", "0.001", "--gpus", "100000"), "nothing is to be expected of this"),
    (("--mttf-hours", "0.01", "--gpus", "1024"), "are too many to simulate: fewer --days"),
]


@pytest.mark.parametrize(("options", "said"), BAD, ids=[said for _, said in BAD])
def test_bad_input_is_named(run: Runner, options: tuple[str, ...], said: str) -> None:
    done = run("ettr", *options)
    assert (done.code, done.out) == (2, "")
    assert said in done.err
