"""Values that are logged while they still lie on a GPU."""

from __future__ import annotations

import json
from pathlib import Path

import torch

import gangline
from support.fixtures.gpu import needs_gpus

STEPS = 200


@needs_gpus(1)
def test_a_value_on_a_gpu_is_that_of_its_step(tmp_path: Path) -> None:
    work = torch.randn(2048, 2048, device="cuda")
    loss = torch.zeros(1, device="cuda")
    with gangline.init(mode="offline", dir=tmp_path) as run:
        with torch.cuda.stream(torch.cuda.Stream()):
            for step in range(STEPS):
                for _ in range(5):
                    work = torch.tanh(work @ work)
                loss += 1
                run.log({"loss": loss}, step=step)
        assert run.summary["loss"] == STEPS
    assert run.folder is not None
    lines = [json.loads(line) for line in next(run.folder.glob("log.*")).read_text().splitlines()]
    metrics = [line for line in lines if isinstance(line, dict)]
    assert [(one["step"], one["value"]) for one in metrics] == [(s, s + 1.0) for s in range(STEPS)]
