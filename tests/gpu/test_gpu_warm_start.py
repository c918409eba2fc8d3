"""Ranks that start warm on a machine with GPUs: by standbys, and by a zygote on its CPU."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from gangline_worker.agent.host.inventory import gpu_statuses
from gangline_worker.agent.runtime.launcher import become_subreaper
from gangline_worker.agent.warm.standby import gpu_files
from gangline_worker.agent.warm.standby_host import StandbyPool
from gangline_worker.agent.warm.zygote_host import ZygoteHost
from support.fixtures.gpu import TRAINS, needs_gpus, nvml_index, rank_variables
from support.harnesses.warm_ranks import Ranks, write
from support.waiting import until

ON_CPU = """
    import sys
    print("warm", "torch" in sys.modules)
    import torch
    print(torch.cuda.is_available())
    layer = torch.nn.Linear(4, 4)
    layer(torch.ones(1, 4)).sum().backward()
    torch.optim.AdamW(layer.parameters(), fused=True).step()
    if torch.cuda.is_available():
        print(torch.ones(2, device="cuda").sum().item())
"""


def used_gb(index: int) -> float:
    [status] = gpu_statuses((index,))
    assert status.memory_used_gb is not None
    return status.memory_used_gb


@needs_gpus(1)
def test_a_standby_trains_on_its_gpu_is_killed_and_another_one_comes(tmp_path: Path) -> None:
    become_subreaper()
    given, index = rank_variables(0), nvml_index(0)
    before_gb = used_gb(index)
    write(tmp_path, {"train.py": TRAINS})
    pool = StandbyPool(tmp_path, 1)
    pool.start()

    def is_ready() -> bool:
        pool.tick()
        return len(pool.ready) == 1

    try:
        ranks = Ranks(tmp_path, pool)
        for rank in range(2):
            until(is_ready, "no standby became ready: what it imports has opened a GPU")
            (standby,) = pool.ready
            assert gpu_files(Path(f"/proc/{standby}")) == set()
            assert ranks.start(rank, ["python", "train.py"], **given) == standby
            until(lambda rank=rank: "holds" in ranks.lines[rank], "it never came to hold memory")
            assert gpu_files(Path(f"/proc/{standby}"))
            assert used_gb(index) - before_gb > 0.9
            os.kill(standby, signal.SIGKILL)
            assert ranks.end(rank).signal == signal.SIGKILL
            until(lambda: used_gb(index) - before_gb < 0.3, "its memory stays taken")
        assert ranks.lines[0][:2] == ["warm True", "gpus 1"]
        assert ranks.lines[0] == ranks.lines[1]
        assert len(ranks.lines[0]) == 6
    finally:
        pool.stop()


@needs_gpus(1)
def test_a_zygote_beside_gpus_forks_ranks_for_slots_and_leaves_others_cold(tmp_path: Path) -> None:
    become_subreaper()
    write(tmp_path, {"look.py": ON_CPU})
    zygote = ZygoteHost(tmp_path)
    zygote.start()
    try:
        until(zygote.is_ready, "the zygote never became ready")
        ranks = Ranks(tmp_path, zygote)
        ranks.start(0, ["python", "look.py"], CUDA_VISIBLE_DEVICES="")
        assert ranks.end(0).code == 0, ranks.lines[0]
        assert ranks.lines[0] == ["warm True", "False"]
        ranks.start(1, ["python", "look.py"], **rank_variables(0))
        assert ranks.end(1).code == 0, ranks.lines[1]
        assert ranks.lines[1] == ["warm False", "True", "2.0"]
    finally:
        zygote.stop()
