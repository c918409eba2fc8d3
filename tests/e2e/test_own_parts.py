"""`gangline up --kafka ... --s3 ...`: the user's own broker and store instead of the embedded.

What becomes of checkpoints there: written on a slow way, read again, advised, validated, pinned.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gangline.local.client import Client
from gangline.local.kafka import EmbeddedKafka
from gangline.local.s3proxy import BUCKET
from gangline_schemas.events.checkpoints import CheckpointScrubbed
from gangline_schemas.events.requests import JobCancelRequested
from gangline_schemas.events.scheduling import CheckpointRef
from gangline_storage import open_store
from gangline_storage.s3_options import S3Credentials
from support.builders.held_job import training
from support.fakes.s3_server import S3Server, s3_server
from support.fixtures.platform import start_platform
from support.harnesses.cli_run import Runner, runner
from support.harnesses.log_watch import PACED, LogWatch

__all__ = ["s3_server"]

pytestmark = pytest.mark.nightly
PREFIX = "own-parts."
SETTINGS = {
    "GANGLINE_TOPIC_PREFIX": PREFIX,
    "GANGLINE_UPLOAD_MB_PER_S": "0.5",  # a save is on its way for a second
    "GANGLINE_SCRUB_PERIOD_HOURS": "0.0005",
    "GANGLINE_SCRUB_GAP_S": "0.1",
}


@dataclass(frozen=True)
class Started:
    """The platform, the names of its processes, and the folder of the store's objects."""

    client: Client
    processes: set[str]
    objects: Path


@pytest.fixture(scope="module")
def started(
    kafka: EmbeddedKafka, s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Started]:
    """A platform of one node whose checkpoints are read again after some seconds."""
    s3 = s3_server.proxy
    running, _ = start_platform(
        tmp_path_factory.mktemp("own"),
        nodes=1,
        kafka=kafka.bootstrap,
        store=s3.url,
        live_view=False,
        environment={**SETTINGS, **s3.environment},
    )
    with running:
        client = running.start()
        names = {row.name for row in running.supervisor.status()}
        yield Started(client, names, s3.data_dir / "objects" / BUCKET)


@pytest.fixture
def watch(started: Started) -> Iterator[LogWatch]:
    with LogWatch(started.client.bootstrap_servers, prefix=PREFIX) as watch:
        yield watch


def test_a_job_is_saved_to_and_resumed_from_s3_over_ones_own_kafka(
    started: Started, watch: LogWatch, kafka: EmbeddedKafka, s3_server: S3Server, tmp_path: Path
) -> None:
    assert started.client.bootstrap_servers == kafka.bootstrap
    assert not started.processes & {"kafka", "s3proxy"}
    go, s3 = tmp_path / "go", s3_server.proxy
    job = watch.submit("on-s3", checkpoint={"interval_minutes": 0.1}, **training(go))
    saved = watch.wait_for(lambda s: s.type == "checkpoint.saved" and s.data.job_id == job)
    os.kill(watch.of("worker.started", job)[0].data.pid, signal.SIGKILL)
    again = watch.wait_for(
        lambda s: s.type == "gang.allocated" and s.data.job_id == job and s.data.attempt == 2
    )
    assert again.data.resume is not None
    assert again.data.resume.step >= saved.data.step
    watch.wait_step(job, again.data.resume.step + 1, attempt=2)
    go.touch()
    assert watch.wait_state(job, "succeeded", "failed").data.state == "succeeded"
    watch.assert_sound()
    last = watch.of("checkpoint.committed", job)[-1].data.checkpoint
    credentials = S3Credentials(s3.settings.access_key, s3.settings.secret_key)
    store = open_store(s3.url, credentials=credentials)
    assert store.head(last.commit_key).size_bytes > 0


def assert_listed(
    gangline: Runner, job: str, *, scrubbed: CheckpointScrubbed, corrupted: CheckpointRef
) -> None:
    """`gangline checkpoints` names the corrupted one, and all that stand are retained."""
    shown = gangline("checkpoints", job)
    assert shown.code == 0, shown.err
    assert max(len(line) for line in shown.out.splitlines()) <= 80
    assert f"step {corrupted.step} of attempt {corrupted.attempt} is corrupted:" in shown.out
    assert "advised:" in shown.out
    listed = gangline("checkpoints", job, "--json").json["checkpoints"]
    health = {(item["attempt"], item["step"]): item for item in listed}
    assert health[corrupted.attempt, corrupted.step]["status"] == "corrupted"
    assert health[scrubbed.attempt, scrubbed.step]["scrubbed_at"] is not None
    standing = [item for item in listed if item["status"] == "committed"]
    assert standing
    assert all(item["retained"] for item in standing)


def test_a_checkpoint_that_rots_is_found_and_the_interval_is_passed_on(
    started: Started,
    watch: LogWatch,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = started.client
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
        lambda s: (
            s.type == "checkpoint.interval.advised" and (s.data.job_id, s.data.attempt) == (job, 2)
        )
    )  # asked at once, before it has saved
    watch.wait_step(job, 1, attempt=2)
    watch.publish(JobCancelRequested(job_id=job), job)
    watch.wait_state(job, "cancelled")

    watch.settle()
    gone = {(s.data.attempt, s.data.step) for s in watch.of("checkpoint.deleted", job)}
    kept = [s.data.checkpoint for s in watch.of("checkpoint.committed", job)]
    oldest = next(ref for ref in kept if (ref.attempt, ref.step) not in gone)
    assert oldest.step >= 5, "the first of its five steps"
    shard = started.objects / oldest.commit_key.replace("COMMIT.json", "rank-00001.bin")
    raw = bytearray(shard.read_bytes())
    raw[len(raw) // 3] ^= 4
    shard.write_bytes(raw)
    rotten = watch.wait_for(
        lambda s: s.type == "checkpoint.corrupted" and s.data.job_id == job
    ).data
    assert (rotten.attempt, rotten.step) == (oldest.attempt, oldest.step)
    assert rotten.key.endswith("rank-00001.bin")
    assert "xxh3-128 differs" in rotten.reason
    watch.wait_for(
        lambda s: (
            s.type == "checkpoint.objects.deleted"
            and (s.data.job_id, s.data.step) == (job, oldest.step)
        )
    )
    assert not shard.exists()

    monkeypatch.setenv("GANGLINE_URL", client.url)
    monkeypatch.setenv("GANGLINE_TOKEN", client.token)
    assert_listed(runner(capsys), job, scrubbed=first.data, corrupted=oldest)
    watch.assert_sound()


def test_the_last_checkpoint_is_validated_by_a_run_of_its_own_and_pinned(
    started: Started,
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

    monkeypatch.setenv("GANGLINE_URL", started.client.url)
    monkeypatch.setenv("GANGLINE_TOKEN", started.client.token)
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
