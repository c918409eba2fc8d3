"""`gangline runs`, `metrics`, `compare` and `reproduce`: tables, pictures, pages."""

from __future__ import annotations

import json
from pathlib import Path

from gangline.plot import svg_of
from gangline_schemas.api.runs import Comparison
from support.fakes.stub_gateway import NOW, Reply, Stub, job
from support.fixtures.commands import (
    COMPARISON,
    CURVES,
    EVENT,
    JOB,
    JOBS,
    ONE,
    RUN,
    all_routes,
    point,
)
from support.harnesses.cli_run import Runner


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


AXES = {
    "axes": [
        {"kind": "param", "name": "lr", "texts": [], "low": 0.1, "high": 0.4},
        {"kind": "param", "name": "optimizer", "texts": ["adam", "sgd"], "low": None, "high": None},
    ],
    "runs": [
        {"run_id": "a-1", "name": "a", "state": "succeeded", "values": [0.1, "adam"]},
        {"run_id": "b-2", "name": "b", "state": "failed", "values": [0.4, None]},
    ],
}


def test_runs_stand_on_parallel_axes(gangline: Runner, stub: Stub) -> None:
    stub.on("GET", "/v1/runs/parallel", AXES)
    lines = gangline("compare", "a-1", "b-2", "--show", "parallel").out.splitlines()
    assert [line.split() for line in lines] == [
        ["A", "a-1"], ["B", "b-2"], [], ["A", "B"],
        ["lr", "0.1", "0.4"], ["optimizer", "adam", "-"],
    ]  # fmt: skip
    assert stub.asked[-1].query["run"] == ["a-1", "b-2"]
    shown = gangline("compare", "a-1", "b-2", "--show", "parallel", "--json")
    assert shown.json["runs"][1]["values"] == [0.4, None]


def test_resources_that_runs_used_over_time(gangline: Runner, stub: Stub) -> None:
    used = [
        {"time": NOW, "x": float(x), "cpu": 50.0 - x, "memory_mb": 900.0 + x, "gpu_hours": x / 10}
        | {"cost": None}
        for x in range(3)
    ]
    stub.on("GET", "/v1/runs/resources", {"curves": [{"run_id": "a-1", "points": used}]})
    lines = gangline("compare", "a-1", "b-2", "--show", "resources").out.splitlines()
    assert [line.split()[:-1] for line in lines[1:]] == [
        ["a-1", "cpu", "%", "48", "50"], ["a-1", "memory", "MB", "902", "902"],
        ["a-1", "gpu-hours", "0.2", "0.2"],
    ]  # fmt: skip


def test_uncommitted_changes_of_two_runs_are_compared(gangline: Runner, stub: Stub) -> None:
    for run, text in (("a-1", "+x = 1\n"), ("b-2", "+x = 2\n\x1b[31m")):
        event = {"type": "job.submitted", "data": {"spec": {"code_diff": text}}}
        stub.on(
            "GET", f"/v1/training-jobs/{run}/events", {"events": [EVENT | event], "cursor": None}
        )
    shown = gangline("compare", "a-1", "b-2", "--show", "code")
    assert shown.out.splitlines() == [
        "--- a-1", "+++ b-2", "@@ -1 +1,2 @@", "-+x = 1", "++x = 2",
        "+\N{REPLACEMENT CHARACTER}[31m",
    ]  # fmt: skip
    shown = gangline("compare", "a-1", "b-2", "--show", "code", "--json")
    assert json.loads(shown.out) == {"uncommitted": ["+x = 1\n", "+x = 2\n\x1b[31m"]}
    assert gangline("compare", "a-1", "b-2", "c-3", "--show", "code").code == 2


def test_many_runs_are_compared_in_tables_that_fit(gangline: Runner, stub: Stub) -> None:
    ids = [f"a-{number}" for number in range(30)]
    shown = COMPARISON | {"runs": [RUN | {"run_id": run} for run in ids]}
    stub.on("GET", "/v1/runs/compare", shown)
    lines = gangline("compare", *ids).out.splitlines()
    assert lines[29].split() == ["AD", "a-29"]
    assert max(map(len, lines)) <= 80
    assert sum(line.startswith("differs") for line in lines) == 8


def test_values_are_cut_before_the_names_of_fields(gangline: Runner, stub: Stub) -> None:
    fields = ["hyperparameters.checkpoint_every_steps", "code_bundle", "command"]
    values = {"a-1": "0123456789abcdef" * 4, "b-2": ["python", "-m", "gangline_worker.training"]}
    differences = [{"field": field, "values": values} for field in fields]
    stub.on("GET", "/v1/runs/compare", COMPARISON | {"differences": differences})
    lines = gangline("compare", "a-1", "b-2").out.splitlines()
    assert [line.split()[0] for line in lines[-3:]] == fields
    assert all(line.count("…") == 2 for line in lines[-3:])
    assert max(map(len, lines)) <= 80


def test_a_run_has_one_colour_in_all_diagrams() -> None:
    curve = {"run_id": "b-2", "name": "lr", "points": [point(1, 4.0), point(2, 2.0)]}
    found = Comparison.model_validate(COMPARISON | {"curves": [*COMPARISON["curves"], curve]})
    for metric, shown, absent in (("loss", "#1f77b4", "#ff7f0e"), ("lr", "#ff7f0e", "#1f77b4")):
        picture = svg_of(found, [metric], "step")
        assert shown in picture
        assert absent not in picture


def test_tags_that_are_set_and_removed(gangline: Runner, stub: Stub) -> None:
    stub.on("POST", f"/v1/runs/{JOB}/tags", {"run_id": JOB, "tags": {"stage": "prod"}})
    shown = gangline("tag", JOB, "stage=prod", "owner=")
    assert shown.out == f"tags of {JOB} set: stage; removed: owner\n"


def test_no_system_metrics_yet(gangline: Runner, stub: Stub) -> None:
    stub.on("GET", f"/v1/runs/{JOB}/curves", {"curves": []})
    assert "nodes take them every 30 s" in gangline("metrics", JOB, "--system").err


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


def test_a_run_is_reproduced_with_the_digest_of_its_image(gangline: Runner, stub: Stub) -> None:
    spec = {"name": "a", "team": "nlp", "run": "true", "image": "a:1", "resources": {"gpus": 1}}
    pinned = f"docker.io/library/a:1@sha256:{'0' * 64}"
    stub.on("GET", ONE, job("succeeded", spec=spec, image=pinned))
    looked = gangline("reproduce", JOB, "--dry-run", "--json")
    assert "image" not in [item["field"] for item in looked.json["loose"]]
    stub.on("POST", JOBS, Reply(job("pending"), 201))
    gangline("reproduce", JOB, "-y")
    assert stub.asked[-1].json["image"] == pinned
