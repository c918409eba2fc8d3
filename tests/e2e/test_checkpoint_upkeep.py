"""What becomes of checkpoints, on the real platform: read again, advised, validated, pinned."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gangline.local.client import Client
from gangline_schemas.events.requests import JobCancelRequested
from support.fixtures.platform import start_platform
from support.harnesses.cli_run import runner
from support.harnesses.log_watch import PACED, LogWatch

SCRUBS_AT_ONCE = {"GANGLINE_SCRUB_PERIOD_HOURS": "0.0005", "GANGLINE_SCRUB_GAP_S": "0.1"}


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Client, Path]]:
    """A platform of one node whose checkpoints are read again after some seconds."""
    data_dir = tmp_path_factory.mktemp("upkeep")
    running, _ = start_platform(data_dir, nodes=1, live_view=False, environment=SCRUBS_AT_ONCE)
    with running:
        yield running.start(), data_dir


@pytest.fixture
def watch(started: tuple[Client, Path]) -> Iterator[LogWatch]:
    with LogWatch(started[0].bootstrap_servers) as watch:
        yield watch


def test_a_checkpoint_that_rots_is_found_and_the_interval_is_passed_on(
    started: tuple[Client, Path],
    watch: LogWatch,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client, data_dir = started
    keep = {"latest": 2, "every": 5}
    job = watch.submit(
        "retained",
        command=PACED,
        hyperparameters={"steps": 1_000_000},
        checkpoint={"interval_minutes": 0.02, "adapt_interval": True, "keep": keep},
    )
    first = watch.wait_for(lambda s: s.type == "checkpoint.scrubbed" and s.data.job_id == job)
    advised = watch.wait_for(
        lambda s: s.type == "checkpoint.interval.advised" and s.data.job_id == job
    ).data
    assert advised.interval_s >= 60.0

    os.kill(watch.of("worker.started", job)[0].data.pid, signal.SIGKILL)
    again = watch.wait_for(
        lambda s: s.type == "gang.allocated" and s.data.job_id == job and s.data.attempt == 2
    )
    told = [s for s in watch.of("job.interval.changed", job) if s.offset < again.offset]
    assert again.data.checkpoint_interval_s == told[-1].data.interval_s
    watch.wait_for(
        lambda s: s.type == "checkpoint.interval.advised" and s.data.attempt == 2
    )  # asked at once, before it has saved
    watch.wait_step(job, 1, attempt=2)
    watch.publish(JobCancelRequested(job_id=job), job)
    watch.wait_state(job, "cancelled")

    watch.settle()
    gone = {(s.data.attempt, s.data.step) for s in watch.of("checkpoint.deleted", job)}
    kept = [s.data.checkpoint for s in watch.of("checkpoint.committed", job)]
    oldest = next(ref for ref in kept if (ref.attempt, ref.step) not in gone)
    assert oldest.step >= 5, "the first of its five steps"
    shard = data_dir / "store" / oldest.commit_key.replace("COMMIT.json", "rank-00001.bin")
    raw = bytearray(shard.read_bytes())
    raw[len(raw) // 3] ^= 4
    shard.write_bytes(raw)
    rotten = watch.wait_for(
        lambda s: s.type == "checkpoint.corrupted" and s.data.job_id == job
    ).data
    assert (rotten.attempt, rotten.step) == (oldest.attempt, oldest.step)
    assert rotten.key.endswith("rank-00001.bin")
    assert "xxh3-128 differs" in rotten.reason
    watch.wait_for(lambda s: s.type == "checkpoint.objects.deleted" and s.data.step == oldest.step)
    assert not shard.exists()

    monkeypatch.setenv("GANGLINE_URL", client.url)
    monkeypatch.setenv("GANGLINE_TOKEN", client.token)
    shown = runner(capsys)("checkpoints", job)
    assert shown.code == 0, shown.err
    assert max(len(line) for line in shown.out.splitlines()) <= 80
    assert f"step {oldest.step} of attempt {oldest.attempt} is corrupted:" in shown.out
    assert "advised:" in shown.out
    listed = runner(capsys)("checkpoints", job, "--json").json["checkpoints"]
    health = {(item["attempt"], item["step"]): item for item in listed}
    assert health[oldest.attempt, oldest.step]["status"] == "corrupted"
    assert health[first.data.attempt, first.data.step]["scrubbed_at"] is not None
    standing = [item for item in listed if item["status"] == "committed"]
    assert standing
    assert all(item["retained"] for item in standing)
    watch.assert_sound()


def test_the_last_checkpoint_is_validated_by_a_run_of_its_own_and_pinned(
    started: tuple[Client, Path],
    watch: LogWatch,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = watch.submit("promoted", hyperparameters={"steps": 8}, checkpoint={"promote": "final"})
    told = watch.wait_for(lambda s: s.type == "checkpoint.promoted" and s.data.job_id == job).data
    assert told.step == 8
    [asked] = watch.of("checkpoint.promotion.requested", job)
    assert asked.data.run == told.run
    watch.wait_state(told.run, "succeeded")
    assert watch.of("checkpoint.committed", told.run) == []

    monkeypatch.setenv("GANGLINE_URL", started[0].url)
    monkeypatch.setenv("GANGLINE_TOKEN", started[0].token)
    gangline = runner(capsys)
    [row] = gangline("checkpoints", job, "--pin", "8", "--json").json["checkpoints"]
    assert (row["promotion"], row["promotion_run"], row["pinned"]) == ("promoted", told.run, True)
    assert set(row["retained"]) == {"latest", "promoted", "pinned"}
    assert row["metrics"]["eval_loss"] > 0
    [row] = gangline("checkpoints", job, "--unpin", "8", "--json").json["checkpoints"]
    assert not row["pinned"]
    shown = gangline("checkpoints", job, "--promote", "8")
    assert shown.code == 0, shown.err
    assert "GATE" in shown.out
    again = watch.wait_for(
        lambda s: s.type == "checkpoint.promoted" and s.data.run != told.run
    ).data
    assert (again.job_id, again.step) == (job, 8)
    assert f"step 8 is validated by {again.run}" in shown.err
    watch.settle()
    pins = [(s.data.pinned, s.data.step) for s in watch.of("checkpoint.pin.changed", job)]
    assert pins == [(True, 8), (False, 8)]
    watch.assert_sound()
