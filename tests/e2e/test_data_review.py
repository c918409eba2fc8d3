"""A gang over a damaged snapshot on the real platform: refused, approved, and flagged."""

from __future__ import annotations

from pathlib import Path

import pytest

from gangline.errors import CliError
from gangline.sdk import Gangline, connect
from support.builders.data import BLOCK_BYTES, flip, small_snapshot
from support.fixtures.platform import RunningPlatform
from support.waiting import DEADLINE_S, wait_until

USE = {"project": "assistants", "purpose": "model-training"}


def last_words(client: Gangline, job_id: str) -> list[str]:
    """A job's log, once it says which data is bad."""

    def found() -> list[str]:
        lines = [line.text for line in client.logs(job_id)]
        return lines if any("is corrupt" in line for line in lines) else []

    lines: list[str] = wait_until("why it ended, in its log", found)
    return lines


def test_a_job_waits_for_its_approval_and_trains_without_the_damaged_block(
    platform: RunningPlatform, tmp_path: Path
) -> None:
    out, manifest, _ = small_snapshot(tmp_path)
    flip(out / "shard-000003.tok", BLOCK_BYTES + 5)
    sizes = {"dim": 32, "layers": 2, "heads": 2, "seq_len": 32, "batch_size": 16}
    wanted = {
        "name": "damaged",
        "team": "default",
        "command": ["python", "-m", "gangline_worker.training"],
        "resources": {"gpus": 2, "memory_per_gpu_gb": 0.1},
        "hyperparameters": sizes | {"steps": 12, "data": str(out)},
        "data_snapshot": manifest.name,
        **USE,
    }
    with connect(platform.client.url, platform.client.token) as client:
        with pytest.raises(CliError, match=f"data_snapshot: {manifest.name} is not approved"):
            client.submit(wanted)
        client.approve_data(manifest.name, **USE)
        job = client.wait(client.submit(wanted).job_id, DEADLINE_S)
        lines = [line.text for line in client.logs(job.job_id, tail=50)]
        assert (job.state, job.restarts) == ("succeeded", 0), "\n".join(lines)
        [flag] = job.review
        place = (flag.snapshot, flag.shard, flag.block)
        assert place == (manifest.name, "shard-000003.tok", 1)
        assert "is in the manifest" in flag.reason
        assert any(line.startswith("data: shard-000003.tok block 1 of corpus@") for line in lines)
        other = wanted | {"hyperparameters": sizes | {"steps": 12}}
        ended = client.wait(client.submit(other).job_id, DEADLINE_S)
        assert ended.state == "failed"
        assert ended.failure is not None
        assert "is text, and the job names data_snapshot" in ended.failure.message
        strict = sizes | {"steps": 12, "data": str(out), "data_max_damaged_blocks": 0, "seed": 1}
        again = client.submit(wanted | {"hyperparameters": strict})
        stopped = client.wait(again.job_id, DEADLINE_S)
        assert (stopped.state, stopped.restarts) == ("failed", 1), "it was tried once more"
        assert stopped.failure is not None
        assert "shard-000003.tok block 1 is corrupt" in stopped.failure.message
        steps = {saved.step for saved in client.checkpoints(stopped.job_id)}
        assert steps == {2}, "all that was trained before that block"
        said = last_words(client, stopped.job_id)
        assert not any("Traceback" in line for line in said), "of the rank that read well"
        client.approve_data(manifest.name, **USE, approve=False)
