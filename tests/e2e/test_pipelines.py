"""The example pipeline on the platform: run, cached, changed, started by a snapshot; kills."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from gangline.errors import CliError
from gangline.sdk import Gangline, connect
from gangline_schemas.api.pipelines import RunDetails
from support.fixtures.platform import RunningPlatform

FILE = Path(__file__).parents[2] / "examples" / "pipeline" / "pipeline.yaml"
SNAPSHOT = "numbers-1@xxh3-" + "5" * 32
WAIT_S = 240.0


def states(run: RunDetails) -> dict[str, str]:
    return {step.name: step.state for step in run.step_rows}


def jobs(client: Gangline, run: RunDetails) -> list[str]:
    return [step.job_id for step in run.step_rows if step.job_id and not step.hit]


def test_a_pipeline_runs_is_cached_and_is_started_by_a_snapshot(
    platform: RunningPlatform, tmp_path: Path
) -> None:
    with connect(platform.client.url, platform.client.token) as client:
        applied = client.apply_pipeline(FILE)
        assert applied.revision >= 1
        first = client.wait_pipeline_run(client.run_pipeline("fits").run_id, WAIT_S)
        assert set(states(first).values()) == {"succeeded"}, first.reason
        assert all(client.get(job_id).state == "succeeded" for job_id in jobs(client, first))
        report = next(step for step in first.step_rows if step.name == "report")
        folder = platform.data_dir / "store" / "teams" / "default" / "artifacts"
        manifest = folder / "manifests" / f"{report.outputs[0].digest}.json"
        assert "report.json" in manifest.read_text()
        written = client.download_output(first.run_id, "report", "report", tmp_path)
        assert written == [tmp_path / "report.json"]
        assert json.loads(written[0].read_text())["best"] in {0, 1}

        again = client.wait_pipeline_run(client.run_pipeline("fits").run_id, WAIT_S)
        assert set(states(again).values()) == {"cached"}
        assert jobs(client, again) == []

        manifest.unlink()
        repaired = client.wait_pipeline_run(client.run_pipeline("fits").run_id, WAIT_S)
        assert states(repaired) == {**states(again), "report": "succeeded"}
        assert "gone" in client.why_step(repaired.run_id, "report").why

        # kill -9 while steps run: the run continues, and no job is asked for twice
        begun = client.announce_snapshot(SNAPSHOT, "default").runs
        assert len(begun) == 1
        assert client.announce_snapshot(SNAPSHOT, "default").runs == []
        client.wait_pipeline_run(begun[0], WAIT_S)
        killed = client.run_pipeline("fits", {"noise": 0.3})
        os.kill(platform.pid("pipelines-0"), signal.SIGKILL)
        ended = client.wait_pipeline_run(killed.run_id, WAIT_S)
        assert set(states(ended).values()) == {"succeeded"}, ended.reason
        assert (ended.jobs, len(set(jobs(client, ended)))) == (4, 4)
        changed = client.why_step(killed.run_id, "fit-0")
        assert changed.why.endswith(": in.numbers")
        client.remove_pipeline("fits")


def test_a_step_without_its_output_fails_and_the_run_is_continued(
    platform: RunningPlatform, tmp_path: Path
) -> None:
    flag = tmp_path / "flag"
    line = f'test -e {flag} && echo 1 > "$GANGLINE_OUT/made/it"; true'
    spec = {
        "name": "flaky",
        "team": "default",
        "steps": {"a": {"job": {"run": line, "resources": {"gpus": 1}}, "out": ["made"]}},
    }
    with connect(platform.client.url, platform.client.token) as client:
        client.apply_pipeline(spec)
        failed = client.wait_pipeline_run(client.run_pipeline("flaky").run_id, WAIT_S)
        assert failed.state == "failed"
        assert "GANGLINE_OUT/made holds no file" in failed.reason
        flag.touch()
        client.retry_pipeline_run(failed.run_id)
        ended = client.wait_pipeline_run(failed.run_id, WAIT_S)
        assert ended.state == "succeeded"
        assert ended.step_rows[0].tries == 2
        with pytest.raises(CliError, match="only one that failed"):
            client.retry_pipeline_run(failed.run_id)
        client.remove_pipeline("flaky")
        assert [one for one in client.pipelines() if one.name == "flaky"] == []
