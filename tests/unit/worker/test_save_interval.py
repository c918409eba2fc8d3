"""The interval between the saves of a program of one's own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gangline_worker import reporting, save, should_checkpoint
from gangline_worker.agent_line import Reporter


def test_the_interval_counts_from_a_save_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    reporter = Reporter(None, interval_s=60.0, clock=lambda: now[0])
    monkeypatch.setattr(reporting, "_reporter", reporter)
    monkeypatch.setenv("GANGLINE_CHECKPOINT_DIR", str(tmp_path))
    now[0] = 50.0
    assert save({"weights": torch.ones(3)}, 1)
    now[0] = 100.0
    assert not should_checkpoint()
    now[0] = 110.0
    assert should_checkpoint()
    assert save({}, 2), "waits for the first"
