"""Versions on the platform: of a step's files, and of a checkpoint that becomes the baseline."""

from __future__ import annotations

from typing import Any

import pytest
from mlflow import MlflowClient

from gangline.sdk import Gangline, connect
from gangline_schemas.api.pipelines import RunDetails
from gangline_schemas.gate_file import Gate
from support.fixtures.platform import RunningPlatform
from support.waiting import wait_until

TEAM, WAIT_S = "default", 600.0
_CPU = {"gpus": 0, "cpus": 1, "memory_gb": 1}
FILES: dict[str, Any] = {
    "name": "files", "team": TEAM,
    "steps": {
        "make": {"job": {"run": "echo {} > $GANGLINE_OUT/model/config.json", "resources": _CPU},
                 "out": ["model"]},
        "register": {
            "in": {"model": "make.model"}, "out": {"version": "score"},
            "job": {"command": ["python", "-m", "gangline_worker.steps.register", "e2e-files"],
                    "mlflow": {"run_id": True}, "resources": _CPU},
        },
    },
}  # fmt: skip
_MODEL = "e2e-champion"
_SIZES = {"dim": 32, "layers": 1, "heads": 2, "seq_len": 32, "batch_size": 8, "steps": 20}


def _step(name: str, *arguments: str, **step: Any) -> dict[str, Any]:
    command = ["python", "-m", f"gangline_worker.{name}", *arguments]
    job = {"command": command, "hyperparameters": _SIZES, **step.pop("job", {})}
    return {"job": {"resources": {"gpus": 1, "memory_per_gpu_gb": 0.5}, **job}, **step}


AGAINST = {
    "name": "against", "team": TEAM,
    "steps": {
        "train": _step("training", job={"checkpoint": {"promote": "final"}}, out=["history"]),
        "export": _step("steps.export", resume="train", out=["model", "serving"]),
        "champion": _step("steps.export", resume=f"{_MODEL}@champion", out=["model"]),
        "evaluate": _step(
            "steps.evaluate", "--items", "64", out=["scores"],
            **{"in": {"model": "export.model", "baseline": "champion.model or none"}},
        ),
        "compare": _step(
            "steps.compare", after=["champion"], out={"difference": "score"},
            **{"in": {"scores": "evaluate.scores"}},
        ),
        "register": _step(
            "steps.register", _MODEL, out={"version": "score"},
            **{"in": {"serving": "export.serving"}},
        ),
    },
}  # fmt: skip
GATE = {
    "team": TEAM, "model": _MODEL, "aliases": ["champion"], "baseline": "current",
    "first": "accept", "suites": {"held-out": {"rule": "better"}},
}  # fmt: skip

pytestmark = pytest.mark.nightly


def test_the_step_register_makes_a_version_that_the_registry_knows(
    platform: RunningPlatform,
) -> None:
    with connect(platform.client.url, platform.client.token) as gateway:
        gateway.apply_pipeline(FILES)
        ended = _ended(gateway, "files")
        outputs = {one.name: one.outputs for one in ended.step_rows}
        (version,) = outputs["register"]
        assert version.value == 1
        (row,) = gateway.model("e2e-files", team=TEAM).version_list
        assert (row.version, row.checkpoint) == (1, None)
        gateway.remove_pipeline("files", team=TEAM)


def test_a_candidate_is_compared_with_the_champion_once_there_is_one(
    platform: RunningPlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", platform.client.token)
    uri = f"{platform.client.url}/mlflow/teams/{TEAM}"
    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    with connect(platform.client.url, platform.client.token) as gateway:
        gateway.set_gate(Gate.model_validate(GATE))
        gateway.apply_pipeline(AGAINST)
        first = _ended(gateway, "against")
        assert _with_state(first, "skipped") == {"champion", "compare"}
        override = {"person": "ada", "reason": "the first one"}
        gateway.promote_version(_MODEL, 1, alias="champion", override=override)
        second = _ended(gateway, "against")
        assert _with_state(second, "succeeded") == {"champion", "evaluate", "compare"}
        (difference,) = next(one for one in second.step_rows if one.name == "compare").outputs
        assert difference.value == 0, "it is the same checkpoint"
        start = gateway.why_step(second.run_id, "champion").starts_from
        assert start is not None
        train = next(one for one in first.step_rows if one.name == "train")
        assert (start.version, start.checkpoint.job_id) == (1, train.job_id)
        assert start.checkpoint.commit_key is not None
        job, step = start.checkpoint.job_id, start.checkpoint.step
        wait_until("the pin of a registered checkpoint", lambda: _pinned(gateway, job) == [step])
        assert gateway.register(_MODEL, job=job, team=TEAM).version == 1
        for _ in range(2):  # the second time MLflow has lost it
            made = gateway.register("e2e-again", job=job, team=TEAM).version
            found = client.get_model_version("e2e-again", str(made))
            assert found.tags["gangline.job"] == job
            client.delete_registered_model("e2e-again")
        third = _ended(gateway, "against")
        assert len(_with_state(third, "cached")) == len(third.step_rows)
        gateway.remove_pipeline("against", team=TEAM)


def _ended(gateway: Gangline, name: str) -> RunDetails:
    """A run of a pipeline that succeeded; its logs, if it did not."""
    ended = gateway.wait_pipeline_run(gateway.run_pipeline(name).run_id, WAIT_S)
    assert ended.state == "succeeded", (ended, [
        [line.text for line in gateway.logs(one.job_id)][-20:]
        for one in ended.step_rows if one.job_id
    ])  # fmt: skip
    return ended


def _pinned(gateway: Gangline, job_id: str) -> list[int]:
    return [one.step for one in gateway.checkpoints(job_id) if one.pinned]


def _with_state(run: RunDetails, state: str) -> set[str]:
    return {one.name for one in run.step_rows if one.state == state}
