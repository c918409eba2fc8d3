"""The control group of a large gang, its ranks as threads of one process."""

from __future__ import annotations

import resource
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from gangline_worker.training.agreement import StepNews, StepSummary, exchange
from gangline_worker.training.control import open_control

_TIMEOUT_S = 200.0
_STACK_BYTES = 256 * 1024


@dataclass(frozen=True)
class Agreed:
    """What came of it: of each rank the last summary; sockets that the gang has; milliseconds."""

    summaries: list[StepSummary]
    sockets: int
    exchange_ms: float  # the median


def agree(store: dist.Store, ranks: int, rounds: int) -> Agreed:
    """Let so many ranks tell each other, and count sockets. Rank r has a loss of r, and fails r."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    met, before = threading.Barrier(ranks), _sockets()
    taken: list[float] = []
    counted: list[int] = []

    def rank_main(rank: int) -> StepSummary:
        group = open_control(store, rank, ranks, _TIMEOUT_S)
        news = StepNews(loss=rank, data_wait_s=rank / 8, failed_saves=rank, stop=rank == 1)
        for _ in range(rounds):
            met.wait(_TIMEOUT_S)
            began_s = time.perf_counter()
            summary = exchange(news, group)
            if rank == 0:
                taken.append(time.perf_counter() - began_s)
        if met.wait(_TIMEOUT_S) == 0:
            counted.append(_sockets() - before)
        met.wait(_TIMEOUT_S)  # all are there until they are counted
        return summary

    usual = threading.stack_size(_STACK_BYTES)
    try:
        with ThreadPoolExecutor(ranks) as threads:
            summaries = list(threads.map(rank_main, range(ranks)))
    finally:
        threading.stack_size(usual)
    return Agreed(summaries, *counted, exchange_ms=statistics.median(taken) * 1e3)


def _sockets() -> int:
    links = [path.readlink() for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return sum(link.name.startswith("socket:") for link in links)
