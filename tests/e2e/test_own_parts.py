"""`gangline up --kafka ... --s3 ...`: the user's own broker and store instead of the embedded.

The way to the store is slow: a job that fails during a save resumes from that save.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from gangline.local.kafka import EmbeddedKafka
from gangline_storage import open_store
from gangline_storage.s3_options import S3Credentials
from support.builders.held_job import training
from support.fakes.s3_server import S3Server, s3_server
from support.fixtures.platform import start_platform
from support.harnesses.log_watch import LogWatch

__all__ = ["s3_server"]


def test_a_job_is_saved_to_and_resumed_from_s3_over_ones_own_kafka(
    kafka: EmbeddedKafka, s3_server: S3Server, tmp_path: Path
) -> None:
    s3 = s3_server.proxy
    prefix = "own-parts."
    platform, _ = start_platform(
        tmp_path,
        nodes=1,
        kafka=kafka.bootstrap,
        store=s3.url,
        environment={
            **s3.environment,
            "GANGLINE_TOPIC_PREFIX": prefix,
            "GANGLINE_UPLOAD_MB_PER_S": "0.5",  # a save is on its way for a second
        },
        live_view=False,
    )
    with platform:
        client = platform.start()
        assert client.bootstrap_servers == kafka.bootstrap
        names = {row.name for row in platform.supervisor.status()}
        assert not names & {"kafka", "s3proxy"}
        go = tmp_path / "go"
        with LogWatch(kafka.bootstrap, prefix=prefix) as watch:
            job = watch.submit(
                "on-s3",
                checkpoint={"interval_minutes": 0.1},
                **training(go),
            )
            saved = watch.wait_for(lambda s: s.type == "checkpoint.saved" and s.data.job_id == job)
            os.kill(watch.of("worker.started", job)[0].data.pid, signal.SIGKILL)
            again = watch.wait_for(
                lambda s: (
                    s.type == "gang.allocated" and s.data.job_id == job and s.data.attempt == 2
                )
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
