"""Saves that leave out frozen layers, through the whole platform: killed, and on bit for bit."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from support.builders.held_job import LONGEST_HOURS
from support.fixtures.platform import RunningPlatform
from support.harnesses.log_watch import LogWatch

_HALF_FROZEN = """
import os, sys, time
import torch
import torch.distributed as dist
from gangline_worker import flush, report, restore, save
from gangline_worker.reporting import reporter

killed_at, attempt = int(sys.argv[1]), int(os.environ["GANGLINE_ATTEMPT"])
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Embedding(10_000, 64), torch.nn.Linear(64, 64))
model[0].requires_grad_(False)
optimizer = torch.optim.AdamW(model[1].parameters(), lr=1e-2)
restored = restore()
if restored:
    model.load_state_dict(restored.state["model"])
    optimizer.load_state_dict(restored.state["optimizer"])
for step in range(restored.step + 1 if restored else 1, 61):
    while attempt == 1 and step == killed_at:
        time.sleep(0.02)
    drawn = torch.Generator().manual_seed(1000 * dist.get_rank() + step)
    words = torch.randint(10_000, (32,), generator=drawn)
    loss = (model(words) - model[0](words).roll(1, 1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    for parameter in model[1].parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    mean = loss.detach() / 2
    dist.all_reduce(mean)
    report({"loss": mean.item()}, step)
    if step % 10 == 0:
        save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, step)
        until = time.monotonic() + 60  # only what is committed can be left out of the next one
        while reporter().committed_step != step and time.monotonic() < until:
            time.sleep(0.01)
flush()
"""


def submit(watch: LogWatch, name: str, program: Path, killed_at: int) -> str:
    return watch.submit(
        name,
        command=["python", str(program), str(killed_at)],
        resources={"gpus": 2, "memory_per_gpu_gb": 0.25},
        checkpoint={"interval_minutes": 60, "incremental": {}},
        max_runtime_hours=LONGEST_HOURS,
    )


def losses(watch: LogWatch, job: str) -> dict[int, set[float]]:
    """All that any attempt reported for each step."""
    found: dict[int, set[float]] = {}
    for report in (s.data for s in watch.of("worker.step") if s.data.run_id == job):
        for step, loss in zip(report.step, report.metrics["loss"], strict=True):
            found.setdefault(step, set()).add(loss)
    return found


def test_a_killed_rank_goes_on_from_an_incremental_save_bit_for_bit(
    platform: RunningPlatform, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(_HALF_FROZEN, encoding="utf-8")
    with platform.watching() as watch:
        killed = submit(watch, "half-frozen", program, 36)
        undisturbed = submit(watch, "left-alone", program, 0)
        watch.wait_step(killed, 35)
        ranks = {s.data.rank: s.data.pid for s in watch.of("worker.started", killed)}
        os.kill(ranks[1], signal.SIGKILL)
        for job in (killed, undisturbed):
            assert watch.wait_state(job, "succeeded", "failed").data.state == "succeeded"
        watch.assert_sound()

        first, second = (s.data for s in watch.of("gang.allocated", killed))
        assert (first.resume, second.resume.step) == (None, 30)
        alone = losses(watch, undisturbed)
        assert sorted(alone) == list(range(1, 61))
        assert all(len(found) == 1 for found in alone.values())
        assert losses(watch, killed) == alone

        commits = {s.data.checkpoint.step: s.data for s in watch.of("checkpoint.committed", killed)}
        refers = {10: (), 20: (10,), 30: (10,), 40: (), 50: (40,), 60: (40,)}
        assert {step: commit.refers for step, commit in commits.items()} == refers
        for step, commit in commits.items():
            written = commit.size_bytes / (commit.whole_bytes or commit.size_bytes)
            assert written < 0.1 if refers[step] else written == 1, f"step {step}: {written}"
