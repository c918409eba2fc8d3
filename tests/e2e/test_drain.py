"""A node that is drained on the real platform: its gang saves and resumes elsewhere at once."""

from __future__ import annotations

from gangline.sdk import connect
from support.fixtures.platform import RunningPlatform
from support.harnesses.log_watch import PACED
from support.harnesses.up_process import wait_until

HOURS = {"interval_minutes": 600}


def test_a_gang_leaves_a_draining_node_by_a_save_that_it_is_asked_for(
    platform: RunningPlatform,
) -> None:
    url, token = platform.client.url, platform.client.token
    with platform.watching() as watch, connect(url, token) as client:
        job = watch.submit(
            "drained", command=PACED, hyperparameters={"steps": 1_000_000}, checkpoint=HOURS
        )
        watch.wait_step(job, 20)
        (node,) = watch.of("gang.allocated", job)[0].data.nodes
        training = {"training": len(node.gpus)}
        wait_until(
            "a heartbeat of ranks that train",
            lambda: (ranks := client.get(job).ranks) is not None and ranks.doing == training,
        )
        client.drain(node.node_id)
        try:
            second = watch.wait_for(
                lambda s: s.type == "gang.allocated" and s.data.job_id == job and s.data.attempt > 1
            ).data
            (asked,) = (s.data for s in watch.of("checkpoint.requested", job))
            assert asked.reason == f"node {node.node_id} is being drained"
            assert second.resume.step >= 20
            assert node.node_id not in {other.node_id for other in second.nodes}
            watch.wait_step(job, second.resume.step + 1, attempt=2)
        finally:
            client.drain(node.node_id, drain=False)
            client.cancel(job)
        watch.wait_state(job, "cancelled")
        saves = [s.data.checkpoint.step for s in watch.of("checkpoint.committed", job)]
        assert 20 <= saves[0] <= second.resume.step, "what was asked for, then the stop's own"
        assert not watch.of("gang.failed", job)
