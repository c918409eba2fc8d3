"""`gangline submit`: the plan, the question, the upload, waiting, and how it all ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.fakes.stub_gateway import FAILURE, NODE, NOW, SPEC, Reply, Stub, event, job, problem
from support.harnesses.cli_run import Runner

JOB = "llama-sft-0123456789"
JOBS = "/v1/training-jobs"
LINE = {
    "attempt": 1, "rank": 0, "line": 0, "node_id": "n", "time": NOW, "stream": "stdout",
    "text": "hello",
}  # fmt: skip


@pytest.fixture
def file(tmp_path: Path, stub: Stub) -> Path:
    """A job file, and a gateway that takes it."""
    path = tmp_path / "job.yaml"
    path.write_text("name: llama-sft\nteam: nlp\nrun: 'true'\nresources: {gpus: 2}\n")

    def submitted(asked):  # noqa: ANN001, ANN202
        if asked.query.get("dry_run"):
            spec = asked.json
            return Reply({"valid": True, "job_id": JOB, "gpus": spec["resources"]["gpus"],
                          "notes": [], "spec": spec})  # fmt: skip
        return Reply(job("pending"), 201)

    stub.routes["POST", JOBS] = submitted
    return path


def sent(stub: Stub) -> list[dict[str, object]]:
    return [
        item.json for item in stub.asked
        if (item.method, item.path) == ("POST", JOBS) and "dry_run" not in item.query
    ]  # fmt: skip


def test_the_plan_comes_first_and_the_id_alone_on_stdout(
    gangline: Runner, stub: Stub, file: Path
) -> None:
    shown = gangline("submit", str(file))
    assert (shown.code, shown.out) == (0, f"{JOB}\n")
    for part in ("2 GPUs, all at once", "nlp uses 2 of 8 GPUs", "2 of 4 GPUs are free: fits now"):
        assert part in shown.err
    (spec,) = sent(stub)
    assert spec["team"] == "nlp"


def test_the_plan_of_a_gang_names_its_workers(gangline: Runner, stub: Stub, file: Path) -> None:
    settings = "resources={workers: 2, gpus_per_worker: 3}"
    shown = gangline("submit", str(file), "--set", settings)
    assert "2 workers of 3 GPUs, all at once" in shown.err
    (spec,) = sent(stub)
    assert spec["resources"].items() >= {"workers": 2, "gpus_per_worker": 3, "gpus": 6}.items()


def test_a_dry_run_starts_and_uploads_nothing(gangline: Runner, stub: Stub, file: Path) -> None:
    file.write_text(file.read_text() + "workdir: .\n")
    shown = gangline("submit", str(file), "--dry-run")
    assert shown.code == 0
    assert "1 file, " in shown.out
    assert sent(stub) == []
    assert "/v1/code-bundles" not in {item.path for item in stub.asked}
    assert gangline("submit", str(file), "--dry-run", "--json").json["valid"] is True


def test_a_dry_run_of_a_job_that_would_be_rejected_ends_with_2(
    gangline: Runner, stub: Stub, file: Path
) -> None:
    note = "team nlpp is not configured: the job would be rejected"
    plan = {"job_id": JOB, "gpus": 2, "notes": [note], "rejected": True, "spec": SPEC}
    stub.on("POST", JOBS, plan)
    shown = gangline("submit", str(file), "--dry-run")
    assert (shown.code, note in " ".join(shown.out.split())) == (2, True)


def test_a_dry_run_of_a_job_that_would_fail_at_once_ends_with_2_and_one_that_waits_with_0(
    gangline: Runner, stub: Stub, file: Path
) -> None:
    reason = "resume_from: run llama-1 has no committed checkpoint of step 99"
    never = {"starts": "never", "gpus": 2, "message": reason}
    stub.on("POST", "/v1/what-if", never)
    shown = gangline("submit", str(file), "--dry-run")
    assert (shown.code, reason in " ".join(shown.out.split())) == (2, True)
    waiting = {
        "job_id": JOB, "code": "capacity", "message": "m", "since": NOW, "position": 1,
        "gpus": {"wanted": 2, "fewest": 2, "free": 0, "total": 0},
        "outlook": {"eta": None, "eta_reason": "no node is that large"},
    }  # fmt: skip
    stub.on("POST", "/v1/what-if", never | {"message": "no node is that large", "waiting": waiting})
    shown = gangline("submit", str(file), "--dry-run")
    assert (shown.code, "no node is that large" in " ".join(shown.out.split())) == (0, True)


def test_the_plan_says_what_is_in_the_way(gangline: Runner, stub: Stub, file: Path) -> None:
    stub.on("GET", "/v1/nodes", {"nodes": [NODE | {"status": "failed"}]})
    shown = gangline("submit", str(file), "--set", "resources.gpus=7", "--dry-run")
    assert "nlp uses 2 of 8 GPUs: waits for the team's jobs" in shown.out
    assert "0 of 4 GPUs are free: waits for room" in shown.out
    shown = gangline("submit", str(file), "--set", "resources.gpus=9", "--dry-run")
    assert "it can never use 9" in shown.out
    shown = gangline("submit", str(file), "--team", "other", "--dry-run")
    assert "other is not configured, or not yours" in shown.out


def test_settings_and_key_are_sent(gangline: Runner, stub: Stub, file: Path) -> None:
    shown = gangline(
        "submit", str(file), "-y", "--idempotency-key", "k-1", "--team", "vision",
        "--set", "hyperparameters.lr=3e-4", "--set", "resources.gpus=1",
    )  # fmt: skip
    assert shown.code == 0
    (spec,) = sent(stub)
    assert (spec["team"], spec["hyperparameters"]) == ("vision", {"lr": 3e-4})
    assert stub.asked[-1].headers["idempotency-key"] == "k-1"


def test_each_submission_without_a_key_is_a_new_job(
    gangline: Runner, stub: Stub, file: Path
) -> None:
    gangline("submit", str(file))
    gangline("submit", str(file))
    keys = {item.headers.get("idempotency-key") for item in stub.asked if item.method == "POST"}
    assert len(keys - {None}) == 2


def test_a_workdir_is_uploaded_for_the_team(gangline: Runner, stub: Stub, file: Path) -> None:
    file.write_text(file.read_text() + "workdir: .\n")
    stub.on("POST", "/v1/code-bundles", Reply({"digest": "d", "size_bytes": 1}, 201))
    assert gangline("submit", str(file)).code == 0
    (upload,) = [item for item in stub.asked if item.path == "/v1/code-bundles"]
    assert upload.query == {"team": ["nlp"]}
    assert upload.headers["content-type"] == "application/gzip"
    assert upload.body.startswith(b"\x1f\x8b")
    (spec,) = sent(stub)
    assert len(str(spec["code_bundle"])) == 64


def test_wait_ends_with_the_jobs_code_and_one_document(
    gangline: Runner, stub: Stub, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gangline.sdk.waiting.FIRST_POLL_S", 0.0)
    stub.on("GET", f"{JOBS}/{JOB}", job("running"), job("failed", failure=FAILURE))
    shown = gangline("submit", str(file), "--wait", "--json")
    assert shown.code == 100
    assert shown.json["state"] == "failed"
    assert "rank 1 on node-1 failed first" in shown.err


def test_wait_gives_the_last_step_of_a_job_that_succeeded(
    gangline: Runner, stub: Stub, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gangline.sdk.waiting.FIRST_POLL_S", 0.0)
    stub.on("GET", f"{JOBS}/{JOB}", job("succeeded", step=29), job("succeeded", step=30))
    assert gangline("submit", str(file), "--wait", "--json").json["step"] == 30


def test_wait_that_times_out_is_not_finished(gangline: Runner, stub: Stub, file: Path) -> None:
    stub.on("GET", f"{JOBS}/{JOB}", job("running"))
    shown = gangline("submit", str(file), "--wait", "--timeout", "0")
    assert (shown.code, shown.out) == (101, f"{JOB}\n")
    assert f"gangline watch {JOB}" in shown.err


def test_follow_shows_the_log_and_ends_with_the_jobs_code(
    gangline: Runner, stub: Stub, file: Path
) -> None:
    text = event("log", LINE, "logs.0.1") + event("end", {"state": "cancelled"})
    stub.on("GET", f"{JOBS}/{JOB}/logs", Reply(stream=text))
    stub.on("GET", f"{JOBS}/{JOB}", job("cancelled"))
    shown = gangline("submit", str(file), "-f")
    assert (shown.code, shown.out) == (103, f"{JOB}\n[0] hello\n")
    lines = gangline("submit", str(file), "-f", "--json").json_lines
    assert [line.get("state", line.get("text")) for line in lines] == [
        "pending", "hello", "cancelled",
    ]  # fmt: skip


def test_a_rejection_names_the_fields(gangline: Runner, stub: Stub, file: Path) -> None:
    stub.on("POST", JOBS, problem(
        422, "rejected", "team nlp can never use 2 GPUs",
        [{"field": "resources.gpus", "message": "at most 1"}, {"field": "team", "message": "m"}],
    ))  # fmt: skip
    shown = gangline("submit", str(file))
    assert (shown.code, shown.out) == (2, "")
    assert "team nlp can never use 2 GPUs" in shown.err
    assert "resources.gpus: at most 1" in shown.err


def test_a_single_field_is_named_once(gangline: Runner, stub: Stub, file: Path) -> None:
    stub.on("POST", JOBS, problem(422, "invalid", "name: is bad",
                                  [{"field": "name", "message": "is bad"}]))  # fmt: skip
    assert gangline("submit", str(file)).err.count("name: is bad") == 1


def test_a_bad_file_asks_nothing(gangline: Runner, stub: Stub, file: Path) -> None:
    file.write_text("name: a\n")
    shown = gangline("submit", str(file))
    assert shown.code == 2
    assert "resources: " in shown.err
    assert stub.asked == []


def test_a_terminal_is_asked_and_may_say_no(
    gangline: Runner, stub: Stub, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", lambda *_a, **_k: (_ for _ in ()).throw(SystemExit(1)))
    assert gangline("submit", str(file)).code == 1
    assert sent(stub) == []
    assert gangline("submit", str(file), "-y").code == 0
