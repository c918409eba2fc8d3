"""One rank's saver in this process, and a state of every kind of tensor."""

from __future__ import annotations

from pathlib import Path

import torch

from gangline_schemas.rank_protocol import ShardReady
from gangline_worker.checkpoint.commit import commit_local
from gangline_worker.checkpoint.saver import AsyncSaver, SaverIdentity


def saver_of(
    directory: Path, announced: list[ShardReady], rank: int = 0, world_size: int = 1
) -> AsyncSaver:
    identity = SaverIdentity(directory, "job-1", 1, rank, world_size)
    return AsyncSaver(identity, announced.append)


def state(seed: int = 0) -> dict[str, torch.Tensor]:
    made = torch.Generator().manual_seed(seed)
    return {
        "a": torch.randn(5, 3, generator=made),
        "b": torch.randn(4, generator=made).to(torch.bfloat16),
        "n": torch.tensor(7.0),
        "flags": torch.tensor([True, False, True]),
        "fp8": torch.randn(3, 2, generator=made).to(torch.float8_e4m3fn),
        "phases": torch.randn(3, generator=made, dtype=torch.complex64),
    }


def saved_alone(directory: Path) -> Path:
    """The folder of a committed checkpoint of one rank."""
    saver = saver_of(directory, [])
    saver.begin(1, state(), {}, {})
    saver.wait()
    folder = directory / "attempt-0001" / "step-0000000001"
    assert commit_local(folder, 1)
    return folder
