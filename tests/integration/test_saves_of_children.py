"""A script that makes processes by itself: which of these save, and which do not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gangline_worker import restore
from gangline_worker.checkpoint.commit import committed

FORKS = """
import os, threading, sys
import torch
from gangline_worker import save
from gangline_worker.checkpoint import public

child_ended = threading.Event()
commit = public.commit_local
public.commit_local = lambda *given: child_ended.wait() and commit(*given)
save({"w": torch.ones(3)}, 1)
child = os.fork()
if not child:
    print(save({"w": torch.ones(3)}, 2), flush=True)
    sys.exit()
print(os.waitpid(child, 0)[1], flush=True)
child_ended.set()
"""


def test_a_child_that_is_forked_during_a_save_ends_and_saves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (
        ("RANK", "0"), ("WORLD_SIZE", "1"), ("GANGLINE_ATTEMPT", "1"),
        ("GANGLINE_CHECKPOINT_DIR", str(tmp_path)),
    ):  # fmt: skip
        monkeypatch.setenv(name, value)
    ended = subprocess.run(
        [sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=120, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, "False\n0\n"), ended.stderr
    assert "step 2 is not saved: this process was forked" in ended.stderr
    assert [folder.name for folder in committed(tmp_path)] == ["step-0000000001"]


SPAWNS = """
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from gangline_worker import save

def rank(index, port):
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=index, world_size=2
    )
    save({"same": torch.ones(3)}, 1, per_rank={"mine": torch.tensor(index)})
    dist.barrier()
    dist.destroy_process_group()

if __name__ == "__main__":
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    port = store.port
    del store
    mp.spawn(rank, args=(port,), nprocs=2)
"""


def test_ranks_that_a_script_spawns_by_itself_are_all_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `torch.multiprocessing.spawn` does: no RANK in the environment."""
    script = tmp_path / "spawns.py"
    script.write_text(SPAWNS)
    for name in ("RANK", "WORLD_SIZE", "GANGLINE_ATTEMPT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GANGLINE_CHECKPOINT_DIR", str(tmp_path / "saved"))
    (tmp_path / "saved" / "attempt-0001 (copy)").mkdir(parents=True)
    ended = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=150, check=False
    )
    assert ended.returncode == 0, ended.stderr
    [folder] = committed(tmp_path / "saved")
    monkeypatch.setenv("GANGLINE_RESUME_FROM", str(folder))
    monkeypatch.setenv("WORLD_SIZE", "2")
    for index in range(2):
        monkeypatch.setenv("RANK", str(index))
        found = restore()
        assert found is not None
        assert found.per_rank["mine"].item() == index
