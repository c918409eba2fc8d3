"""Training that goes wrong on well ranks, and slow ranks: what is decided, what is reported."""

from __future__ import annotations

import os
import random
import signal
import string
from pathlib import Path
from typing import Any

import pytest

from gangline.sdk import connect
from gangline_worker.data.order import SampleOrder
from support.builders.held_job import LONGEST_HOURS
from support.fixtures.platform import RunningPlatform
from support.harnesses.log_watch import LogWatch
from support.waiting import wait_until

_NOT_FINITE = """
import os, sys, time
import torch
from gangline_worker import flush, report, restore, save, should_skip

gate = sys.argv[1]
weights = torch.zeros(4)
restored = restore()
if restored:
    weights.copy_(restored.state["weights"])
bad = os.environ["GANGLINE_ATTEMPT"] == "1"
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
_BUSY = """
import os, sys, time
from gangline_worker import doing, flush, report

busy_s, step = float(sys.argv[2 + int(os.environ["RANK"])]), 0
doing("training")
while not os.path.exists(sys.argv[1]):
    step += 1
    time.sleep(0.1)
    report({"busy_s": busy_s}, step)  # not measured: a slow machine makes no rank slow
flush()
"""
_BAD_DATA = """
import os, sys, time
import torch
from gangline_worker.training import __main__ as program, parallel
from gangline_worker.training.trainer import Trainer

gate, attempt = sys.argv[1], int(os.environ["GANGLINE_ATTEMPT"])
if attempt == 3:
    del os.environ["GANGLINE_LEFT_OUT"]  # its checkpoint knows
sound = parallel.loss_of

def spoilt(logits, targets):
    return sound(logits, targets) * (float("nan") if (targets == 1).any() else 1.0)

class Held(Trainer):
    def train_step(self):
        while attempt == 1 and self.step == 15 and not os.path.exists(gate):
            time.sleep(0.02)
        while attempt == 2 and self.step == 28:  # here it is killed
            time.sleep(0.02)
        return super().train_step()

parallel.loss_of = spoilt
program.Trainer = Held
sys.argv[1:] = []
program.leave(program.main())
"""
TRAINING = {"on_nan": {"skip": 2}, "on_spike": {"window": 16, "steps": 3}}


def submit(
    watch: LogWatch, name: str, text: str, gate: Path, *more: str, gpus: int = 1, **fields: Any
) -> str:
    """A job that runs this program; a file of its own lets it start warm."""
    program = gate.with_name("program.py")
    program.write_text(text, encoding="utf-8")
    return watch.submit(
        name,
        command=["python", str(program), str(gate), *more],
        resources={"gpus": gpus, "memory_per_gpu_gb": 0.25},
        max_runtime_hours=LONGEST_HOURS,
        **{"training": TRAINING, **fields},
    )


def saved(watch: LogWatch, job: str, step: int = 20) -> None:
    """Wait until the job's checkpoint of this step is committed."""
    watch.wait_for(
        lambda s: (
            s.type == "checkpoint.committed"
            and s.data.job_id == job
            and s.data.checkpoint.step == step
        )
    )


def losses(watch: LogWatch, job: str, attempt: int) -> dict[int, float]:
    """What rank 0 of an attempt reported, by step."""
    watch.settle()
    found: dict[int, float] = {}
    for report in (s.data for s in watch.of("worker.step")):
        if (report.run_id, report.attempt, report.rank) == (job, attempt, 0):
            told = zip(report.step, report.metrics.get("loss", ()), strict=False)
            found |= {step: loss for step, loss in told if loss is not None}
    return found


def test_a_loss_that_is_not_finite_goes_back_to_the_last_finite_checkpoint(
    platform: RunningPlatform, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    with platform.watching() as watch:
        job = submit(watch, "passing", _NOT_FINITE, gate)
        saved(watch, job)
        gate.touch()
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


def test_samples_that_spoil_the_loss_are_left_out_for_good(
    platform: RunningPlatform, tmp_path: Path
) -> None:
    gate, data, seed, place = tmp_path / "gate", tmp_path / "data.txt", 17, 19 * 8 + 3
    text = bytearray(random.Random(seed).choices(string.ascii_lowercase.encode(), k=40_000))
    (window,) = SampleOrder((len(text) - 1) // 32, seed).at(place, 1).tolist()
    text[window * 32 + 7] = 1  # with this byte a loss is NaN
    data.write_bytes(text)
    settings = {"steps": 40, "checkpoint_every_steps": 10, "seed": seed, "data": str(data)}
    with platform.watching() as watch:
        job = submit(
            watch,
            "spoilt",
            _BAD_DATA,
            gate,
            gpus=2,
            hyperparameters=settings,
            checkpoint={"interval_minutes": 60},
            training={"on_nan": {"skip": 0}},
        )
        saved(watch, job, step=10)
        gate.touch()
        saved(watch, job, step=20)
        watch.wait_for(
            lambda s: (
                s.type == "worker.step"
                and (s.data.run_id, s.data.attempt, s.data.rank) == (job, 2, 0)
                and max(s.data.step) == 28
            )
        )
        second = [s.data for s in watch.of("worker.started", job) if s.data.attempt == 2]
        os.kill(second[0].pid, signal.SIGKILL)
        assert watch.wait_state(job, "succeeded", "failed").data.state == "succeeded"

        spoilt, killed = [s.data for s in watch.of("gang.failed", job)]
        batch = [{"first": 19 * 8, "count": 8}]
        assert (spoilt.failure_class, spoilt.action) == ("nan", "restart")
        assert [part.data() for part in spoilt.left_out] == batch
        assert "8 samples are left out from now on: 152 to 159" in spoilt.message
        assert (killed.failure_class, killed.left_out) == ("process", ())
        third = watch.of("gang.allocated", job)[2].data
        assert ([part.data() for part in third.left_out], third.resume.step) == (batch, 20)
        first, without, again = (losses(watch, job, attempt) for attempt in (1, 2, 3))
        assert min(without) == 11
        assert {step: without[step] for step in range(11, 20)} == {
            step: first[step] for step in range(11, 20)
        }
        both = range(21, 29)
        assert [again[step] for step in both] == [without[step] for step in both]
        with connect(platform.client.url, platform.client.token) as client:
            wait_until(
                "the incident",
                lambda: spoilt.message in {one.message for one in client.incidents(job).incidents},
            )
        watch.assert_sound()


def test_a_loss_that_leaps_up_is_told(platform: RunningPlatform, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with platform.watching() as watch:
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
    with platform.watching() as watch:
        even = submit(watch, "even", _BUSY, gate, "0.1", "0.1", gpus=2)
        watch.wait_step(even, 20)
        uneven = submit(watch, "uneven", _BUSY, gate, "0.1", "0.5", gpus=2)
        named = watch.wait_for(
            lambda s: s.type == "worker.straggling" and s.data.job_id == uneven
        ).data
        assert (named.rank, named.against) == (1, "gang")
        assert named.relative == pytest.approx(0.2)
        with connect(platform.client.url, platform.client.token) as client:
            slow = wait_until(
                "the notice of the node",
                lambda: [node.node_id for node in client.nodes() if node.straggler],
            )
        assert slow == [named.node_id]
        watch.settle()
        assert watch.of("worker.straggling", even) == [], "both ranks take as long"
        gate.touch()
        for job in (even, uneven):
            assert watch.wait_state(job, "succeeded", "failed").data.state == "succeeded"
