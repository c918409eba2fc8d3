"""Training that goes wrong on well ranks, and slow ranks: what is decided, what is told."""

from __future__ import annotations

from pathlib import Path

from gangline.sdk import connect
from held_job import LONGEST_HOURS
from log_watch import LogWatch
from platform_fixture import RunningPlatform
from up_process import wait_until

_NOT_FINITE = """
import os, sys, time
import torch
from gangline_worker import flush, report, restore, save, should_skip

gate, bad_attempts = sys.argv[1], [int(number) for number in sys.argv[2:]]
weights = torch.zeros(4)
restored = restore()
if restored:
    weights.copy_(restored.state["weights"])
bad = int(os.environ["GANGLINE_ATTEMPT"]) in bad_attempts
for step in range(restored.step + 1 if restored else 1, 31):
    gradient = float("nan") if bad and step > 20 else 1.0
    if not should_skip(step, gradient):
        weights += gradient
    report({"loss": gradient, "sum": float(weights.sum())}, step)
    if step in (10, 20):
        save({"weights": weights}, step)
    while step == 20 and not os.path.exists(gate):
        time.sleep(0.05)
flush()
"""
_SPIKE = """
import os, sys, time
from gangline_worker import report

for step in range(1, 21):
    report({"loss": 2.0 + step % 3 / 100 if step <= 17 else 5.0}, step)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
"""
_NAP = """
import os, sys, time
from gangline_worker import doing, flush, report

nap, step = float(sys.argv[2 + int(os.environ["RANK"])]), 0
doing("training")
while not os.path.exists(sys.argv[1]):
    step += 1
    started = time.perf_counter()
    time.sleep(nap)
    report({"busy_s": time.perf_counter() - started}, step)
flush()
"""
TRAINING = {"on_nan": {"skip": 2}, "on_spike": {"window": 16, "steps": 3}}


def submit(
    watch: LogWatch, name: str, text: str, gate: Path, *more: str, gpus: int = 1, **fields: object
) -> str:
    """A job that runs this program; a file of its own lets it start warm."""
    program = gate.with_name("program.py")
    program.write_text(text, encoding="utf-8")
    return watch.submit(
        name,
        command=["python", str(program), str(gate), *more],
        resources={"gpus": gpus, "memory_per_gpu_gb": 0.1},
        training=TRAINING,
        max_runtime_hours=LONGEST_HOURS,
        **fields,
    )


def saved(watch: LogWatch, job: str, gate: Path) -> None:
    """Let the job go on once its checkpoint of step 20 is committed."""
    watch.wait_for(
        lambda s: (
            s.type == "checkpoint.committed"
            and s.data.job_id == job
            and s.data.checkpoint.step == 20
        )
    )
    gate.touch()


def test_a_loss_that_is_not_finite_goes_back_to_the_last_finite_checkpoint(
    platform: RunningPlatform, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    with LogWatch(platform.client.bootstrap_servers) as watch:
        job = submit(watch, "passing", _NOT_FINITE, gate, "1")
        saved(watch, job, gate)
        assert watch.wait_state(job, "succeeded", "failed").data.state == "succeeded"
        (failed,) = [s.data for s in watch.of("gang.failed", job)]
        assert (failed.failure_class, failed.action) == ("nan", "restart")
        assert "not finite for 3 steps in a row, the last 23" in failed.message
        assert watch.of("gang.allocated", job)[1].data.resume.step == 20
        watch.wait_step(job, 30, attempt=2)
        sums: dict[int, float] = {}
        reports = [s.data for s in watch.of("worker.step") if s.data.run_id == job]
        for one in sorted(reports, key=lambda one: one.attempt):
            sums |= zip(one.step, one.metrics["sum"], strict=True)
        assert sums == {step: 4.0 * step for step in range(1, 31)}
        watch.assert_sound()


def test_one_that_comes_again_from_the_same_checkpoint_ends_the_job(
    platform: RunningPlatform, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    with LogWatch(platform.client.bootstrap_servers) as watch:
        attempts = [str(number) for number in range(1, 9)]
        job = submit(watch, "lasting", _NOT_FINITE, gate, *attempts, restart={"max": 100})
        saved(watch, job, gate)
        assert watch.wait_state(job, "succeeded", "failed").data.state == "failed"
        failed = [s.data for s in watch.of("gang.failed", job)]
        assert [one.action for one in failed] == ["restart", "restart", "fail"]
        assert "the same again after 2 restarts from step 20" in failed[-1].message
        committed = [s.data.checkpoint.step for s in watch.of("checkpoint.committed", job)]
        assert max(committed) == 20
        watch.assert_sound()


def test_a_loss_that_leaps_up_is_told(platform: RunningPlatform, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with LogWatch(platform.client.bootstrap_servers) as watch:
        job = submit(watch, "spiky", _SPIKE, gate)
        told = watch.wait_for(lambda s: s.type == "gang.troubled" and s.data.job_id == job).data
        assert (told.kind, told.step, told.rank) == ("loss_spike", 20, 0)
        assert "the loss was above 2.1" in told.message
        gate.touch()
        assert watch.wait_state(job, "succeeded", "failed").data.state == "succeeded"
        with connect(platform.client.url, platform.client.token) as client:
            (noticed,) = wait_until("noticed", lambda: client.incidents(job).notices)
        assert (noticed.kind, noticed.message) == ("loss_spike", told.message)


def test_a_rank_that_is_slow_is_named_and_none_of_an_even_gang(
    platform: RunningPlatform, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    with LogWatch(platform.client.bootstrap_servers) as watch:
        even = submit(watch, "even", _NAP, gate, "0.1", "0.1", gpus=2)
        watch.wait_step(even, 20)
        uneven = submit(watch, "uneven", _NAP, gate, "0.05", "0.25", gpus=2)
        named = watch.wait_for(
            lambda s: s.type == "worker.straggling" and s.data.job_id == uneven
        ).data
        assert (named.rank, named.against) == (1, "gang")
        assert named.relative < 0.7
        with connect(platform.client.url, platform.client.token) as client:
            slow = [node.node_id for node in client.nodes() if named.message == node.straggler]
        assert slow == [named.node_id]
        watch.settle()
        assert watch.of("worker.straggling", even) == [], "both ranks take as long"
        gate.touch()
        for job in (even, uneven):
            assert watch.wait_state(job, "succeeded", "failed").data.state == "succeeded"
