"""The trainer on GPUs over NCCL: killed, resumed, and what its clock counts."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch
from torch import nn

from gangline_worker.checkpoint.commit import committed
from gangline_worker.checkpoint.loader import Checkpoint
from gangline_worker.training.busy import LayerClock
from gangline_worker.training.state import TrainState
from support.fixtures.gpu import needs_gpus, rank_variables
from support.harnesses.gang import DEADLINE_S, Gang, train

STEPS = 8
TOLERANCE = 2e-3
"""Of bfloat16: a GPU may add up in another order the next time."""


def assert_resumes_after_a_kill(folder: Path, ranks: int, *settings: str) -> None:
    """The losses after the kill are those of a run that was not killed."""
    given = rank_variables(*range(ranks))
    every = (f"steps={STEPS}", "checkpoint_every_steps=2", *settings)
    whole = train(folder / "whole", ranks, *every, extra_env=given)
    dead = Gang(folder / "dead", ranks, every, killed=(ranks - 1, 5), extra_env=given)
    dead.processes[-1].join(DEADLINE_S)
    assert dead.processes[-1].exitcode == -signal.SIGKILL
    dead.kill()  # as an agent does: over NCCL the others would wait for minutes
    newest = max(committed(dead.directory / "checkpoints"))
    state = TrainState.model_validate(Checkpoint(newest).manifests[0].state)
    assert state.rng.torch_cuda is not None
    resumed = train(folder / "again", ranks, *every, resume_from=newest, extra_env=given)
    losses = resumed.losses()
    assert list(losses) == list(range(state.step + 1, STEPS + 1))
    expected = {step: whole.losses()[step] for step in losses}
    assert losses == pytest.approx(expected, rel=TOLERANCE)


@needs_gpus(1)
def test_a_killed_run_goes_on_where_it_was(tmp_path: Path) -> None:
    assert_resumes_after_a_kill(tmp_path, 1)


@needs_gpus(2)
@pytest.mark.parametrize(
    "settings",
    [
        ("strategy=ddp",),
        ("strategy=fsdp",),
        ("parallel={tensor: 2}",),
        ("parallel={pipeline: 2}", "accumulation=2"),
        ("parallel={shard: 2, expert: 2}", "experts=4", "experts_per_token=2"),
    ],
    ids=["ddp", "fsdp", "tensor", "pipeline", "experts"],
)
def test_a_killed_gang_goes_on_where_it_was(tmp_path: Path, settings: tuple[str, ...]) -> None:
    assert_resumes_after_a_kill(tmp_path, 2, *settings)


@needs_gpus(1)
def test_the_work_counts_and_not_its_launch() -> None:
    layer = nn.Linear(4096, 4096, device="cuda")
    clock = LayerClock([(layer, layer)], torch.device("cuda"))
    for _ in range(10):
        layer(torch.ones(4096, 4096, device="cuda"))
    torch.cuda.synchronize()
    assert clock.take() > 0
    assert clock.take() == 0.0
