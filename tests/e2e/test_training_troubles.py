"""Training that goes wrong on well ranks, and slow ranks: what is decided, what is told."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from gangline.sdk import connect
from log_watch import LogWatch
from platform_fixture import RunningPlatform

_NOT_FINITE = """
import os
import torch
from gangline_worker import report, restore, save, should_skip

steps, bad_from, bad_attempts = 30, 21, {attempts}
weights = torch.zeros(4)
restored = restore()
if restored:
    weights.copy_(restored.state["weights"])
bad = int(os.environ["GANGLINE_ATTEMPT"]) in bad_attempts
for step in range(restored.step + 1 if restored else 1, steps + 1):
    gradient = float("nan") if bad and step >= bad_from else 1.0
    if not should_skip(step, gradient):
        weights += gradient
    report({{"loss": gradient, "sum": float(weights.sum())}}, step)
    if step % 10 == 0:
        save({{"weights": weights}}, step)
"""
SKIP = {"on_nan": {"skip": 2}}
OFTEN = {"interval_minutes": 0.02}
DUTY_S = 0.01


def script(attempts: set[int]) -> list[str]:
    """A job whose gradients are NaN from step 21 on, in these attempts."""
    return ["python", "-c", _NOT_FINITE.format(attempts=attempts)]


def alone(watch: LogWatch, name: str, attempts: set[int], **fields: object) -> str:
    resources = {"gpus": 1, "memory_per_gpu_gb": 0.1}
    command = script(attempts)
    return watch.submit(name, command=command, resources=resources, training=SKIP, **fields)


def test_a_loss_that_is_not_finite_goes_back_to_the_last_finite_checkpoint(
    platform: RunningPlatform,
) -> None:
    with LogWatch(platform.client.bootstrap_servers) as watch:
        job = alone(watch, "passing", {1})
        assert watch.wait_state(job, "succeeded", "failed").data.state == "succeeded"
        (failed,) = [s.data for s in watch.of("gang.failed", job)]
        assert (failed.failure_class, failed.action, failed.last_step) == ("nan", "restart", 22)
        assert "not finite for 3 steps in a row, the last 23" in failed.message
        second = watch.of("gang.allocated", job)[1].data
        assert second.resume.step == 20
        steps = [s.data for s in watch.of("worker.step") if s.data.run_id == job]
        last = {step: value for one in steps for step, value in
                zip(one.step, one.metrics["sum"], strict=True)}  # fmt: skip
        assert last[30] == 4 * 30, "no update was lost, and none was NaN"
        told = [s.data for s in watch.of("gang.troubled", job)]
        assert [(one.kind, one.step) for one in told] in ([("not_finite", 21)], [])
        watch.assert_sound()


def test_one_that_comes_again_from_the_same_checkpoint_ends_the_job(
    platform: RunningPlatform,
) -> None:
    with LogWatch(platform.client.bootstrap_servers) as watch:
        job = alone(watch, "lasting", {1, 2, 3, 4, 5, 6}, restart={"max": 100})
        assert watch.wait_state(job, "succeeded", "failed").data.state == "failed"
        failed = [s.data for s in watch.of("gang.failed", job)]
        assert [one.action for one in failed] == ["restart", "restart", "fail"]
        assert "the same again after 2 restarts from step 20" in failed[-1].message
        committed = [s.data.checkpoint.step for s in watch.of("checkpoint.committed", job)]
        assert max(committed) == 20
        watch.assert_sound()


@contextmanager
def slowed(pid: int) -> Iterator[None]:
    """Stop a process half of the time."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(DUTY_S):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(DUTY_S)
            os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_a_rank_that_is_slowed_down_is_named_and_none_of_an_even_gang(
    platform: RunningPlatform,
) -> None:
    with LogWatch(platform.client.bootstrap_servers) as watch:
        job = watch.submit(
            "uneven",
            hyperparameters={"steps": 100_000, "dim": 256, "batch_size": 32, "seq_len": 64},
            checkpoint=OFTEN,
        )
        watch.wait_for(lambda s: s.type == "checkpoint.committed" and s.data.job_id == job)
        watch.wait_step(job, 40)
        deadline = time.monotonic() + 8
        while time.monotonic() < deadline:  # more than STRAGGLER_AFTER_S
            watch.poll()
        assert watch.of("worker.straggling", job) == [], "both ranks do the same work"
        (pid,) = [s.data.pid for s in watch.of("worker.started", job) if s.data.rank == 1]
        with slowed(pid):
            named = watch.wait_for(
                lambda s: s.type == "worker.straggling" and s.data.job_id == job
            ).data
        assert (named.rank, named.against) == (1, "gang")
        assert named.relative < 0.7
        assert watch.of("gang.failed", job) == []
        with connect(platform.client.url, platform.client.token) as client:
            client.cancel(job)
        watch.wait_state(job, "cancelled")
