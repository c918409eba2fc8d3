"""What memory a script's saves hold, and for how long."""

from __future__ import annotations

import mmap
import weakref
from pathlib import Path

import pytest
import torch

from gangline_worker import restore, save
from gangline_worker.checkpoint.commit import committed


def test_a_state_that_was_made_for_one_save_is_not_kept_until_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GANGLINE_CHECKPOINT_DIR", str(tmp_path))
    for step in (1, 2):
        memory = mmap.mmap(-1, 4096)
        gathered = torch.frombuffer(memory, dtype=torch.float32).fill_(step)
        kept = weakref.ref(memory)
        assert save({"gathered": gathered}, step)
        del memory, gathered
        assert kept() is None
    assert save({}, 3), "waits for the save of step 2"
    [second] = [folder for folder in committed(tmp_path) if folder.name == "step-0000000002"]
    monkeypatch.setenv("GANGLINE_RESUME_FROM", str(second))
    found = restore()
    assert found is not None
    assert found.state["gathered"].unique().tolist() == [2.0]
