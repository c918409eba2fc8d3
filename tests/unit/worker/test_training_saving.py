"""What the trainer announces of its saves."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from gangline_worker.checkpoint.commit import committed
from gangline_worker.checkpoint.public import DIRECTORY_ENV
from gangline_worker.training.saving import Checkpointer


def test_the_last_save_counts_whatever_became_of_those_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DIRECTORY_ENV, str(tmp_path))
    checkpointer = Checkpointer({"model.a": torch.ones(8, 8)})
    checkpointer.begin(1, {}, {"loss": 1.0})
    checkpointer.finish()
    (whole,) = committed(tmp_path)
    (whole.parent / "step-0000000002").touch()  # in the way of the next one
    for step in (2, 3):
        checkpointer.begin(step, {}, {"loss": 1.0})
    checkpointer.finish()
    assert checkpointer.metrics()["checkpoint_failures"] == 1
    assert (checkpointer.failed(2), checkpointer.failed(3)) == (True, False)
    assert [int(folder.name[5:]) for folder in committed(tmp_path)] == [1, 3]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_weights_that_are_not_finite_are_never_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], bad: float
) -> None:
    monkeypatch.setenv(DIRECTORY_ENV, str(tmp_path))
    tensors = {
        "model.a": torch.ones(8, 8),
        "model.b": torch.ones(()),
        "optimizer.a.exp_avg": torch.full((8, 8), math.inf),
    }
    checkpointer = Checkpointer(tensors)
    checkpointer.begin(1, {}, {"loss": 1.0})
    checkpointer.finish()
    tensors["model.a"][3, 3] = bad
    checkpointer.begin(2, {}, {"loss": 1.0})
    checkpointer.finish()
    assert [folder.name for folder in committed(tmp_path)] == ["step-0000000001"]
    assert checkpointer.metrics()["checkpoint_failures"] == 1
    assert "checkpoint of step 2 failed: NotFiniteError: its weights" in capfd.readouterr().err
