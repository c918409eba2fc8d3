"""A gang whose data does not come, on the real platform: it is moved, and repeats no step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gangline.sdk import connect
from support.builders.data import small_snapshot
from support.fakes.s3_server import BreakingProxy, S3Server, s3_server
from support.fixtures.platform import RunningPlatform
from support.waiting import wait_until

__all__ = ["s3_server"]  # a fixture is used by being in this module

CORPUS_BYTES = 4_000_000  # minutes of training, block by block
SIZES = {"dim": 32, "layers": 2, "heads": 2, "seq_len": 32, "batch_size": 16, "steps": 1_000_000}
HOURS = {"interval_minutes": 600}  # nothing is saved before it is asked for
KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
FOR_EVER = 10**9


@pytest.fixture
def keys(platform: RunningPlatform, s3_server: S3Server) -> Iterator[None]:
    """The store's credentials, as secrets of team default."""
    folder = platform.data_dir / "secrets" / "default"
    folder.mkdir(parents=True, exist_ok=True)
    server = s3_server.proxy.settings
    for name, value in zip(KEYS, (server.access_key, server.secret_key), strict=True):
        (folder / name).touch(mode=0o600)
        (folder / name).write_text(value)
    yield
    for name in KEYS:
        (folder / name).unlink()


@pytest.fixture
def network(s3_server: S3Server) -> Iterator[BreakingProxy]:
    """The way of ranks to the store."""
    network = BreakingProxy(s3_server.proxy.settings.port)
    yield network
    network.close()


@pytest.mark.nightly
@pytest.mark.usefixtures("keys")
def test_a_gang_that_waits_for_its_data_saves_and_moves_when_its_node_is_drained(
    platform: RunningPlatform, s3_server: S3Server, network: BreakingProxy, tmp_path: Path
) -> None:
    out, _, _ = small_snapshot(tmp_path, CORPUS_BYTES, shard_tokens=1 << 17)
    store = s3_server.store()
    for path in out.iterdir():
        store.put_file(path.name, path)
    data = {
        "data": f"s3://{store.bucket}/{store.prefix}?endpoint={network.endpoint}",
        "data_cache": str(tmp_path / "cache"),
    }
    url, token = platform.client.url, platform.client.token
    with platform.watching() as watch, connect(url, token) as client:
        job = watch.submit(
            "thirsty", hyperparameters=SIZES | data, secrets=list(KEYS), checkpoint=HOURS
        )
        watch.wait_step(job, 2)
        network.lose_answers(FOR_EVER)
        wait_until(
            "a heartbeat of a rank that waits",
            lambda: (ranks := client.get(job).ranks) is not None and "waiting" in ranks.doing,
        )
        (node,) = watch.of("gang.allocated", job)[0].data.nodes
        client.drain(node.node_id)
        try:
            second = watch.wait_for(
                lambda s: s.type == "gang.allocated" and s.data.job_id == job and s.data.attempt > 1
            ).data
        finally:
            client.drain(node.node_id, drain=False)
        (asked,) = (s.data for s in watch.of("checkpoint.requested", job))
        assert asked.reason == f"node {node.node_id} is being drained"
        watch.settle()
        steps = [s.data for s in watch.of("worker.step") if s.data.run_id == job]
        trained = max(step for report in steps if report.attempt == 1 for step in report.step)
        assert second.resume.step == trained, "the last step before the data stayed away"
        assert node.node_id not in {other.node_id for other in second.nodes}
        network.lose_answers(0)
        watch.wait_step(job, second.resume.step + 5, attempt=2)
        client.cancel(job)
        watch.wait_state(job, "cancelled")
        assert not watch.of("gang.failed", job)
