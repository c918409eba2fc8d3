"""The step register on the platform: a job's files become a version that the registry knows."""

from __future__ import annotations

from typing import Any

import pytest

from gangline.sdk import connect
from support.fixtures.platform import RunningPlatform

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

pytestmark = pytest.mark.nightly


def test_the_step_register_makes_a_version_that_the_registry_knows(
    platform: RunningPlatform,
) -> None:
    with connect(platform.client.url, platform.client.token) as gateway:
        gateway.apply_pipeline(FILES)
        ended = gateway.wait_pipeline_run(gateway.run_pipeline("files").run_id, WAIT_S)
        assert ended.state == "succeeded", (ended, [
            [line.text for line in gateway.logs(one.job_id)][-20:]
            for one in ended.step_rows if one.job_id
        ])  # fmt: skip
        outputs = {one.name: one.outputs for one in ended.step_rows}
        (version,) = outputs["register"]
        assert version.value == 1
        (row,) = gateway.model("e2e-files", team=TEAM).version_list
        assert (row.version, row.checkpoint) == (1, None)
        gateway.remove_pipeline("files", team=TEAM)
