"""What ranks tell each other between two steps, beside an all-gather of the same numbers.

`agreement_N_ms`: the median of an exchange of N ranks over gloo, all on this machine.
`agreement_64_gain`: how many times as long the all-gather takes for 64 of them. It grows with the
ranks' messages: 2 a rank, an all-gather's with the square of the ranks.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

from harness import Context, Result, in_own_process

RANKS = (2, 8, 64)
ANSWER_S = 200.0


def run(context: Context) -> list[Result]:
    """In a process of its own, which forks the ranks after torch is imported."""
    rounds = context.repeats(40, quick=5)
    figures = in_own_process("bench_agreement", "--rounds", str(rounds))
    results = []
    for ranks in map(str, RANKS):
        ours, theirs = figures[ranks]
        note = f"an all-gather takes {theirs:.2f} ms"
        results.append(context.result(f"agreement_{ranks}_ms", ours, "ms", note=note))
    ours, theirs = figures[str(RANKS[-1])]
    return [*results, context.result(f"agreement_{RANKS[-1]}_gain", theirs / ours, "x")]


def measure(ranks: int, rounds: int) -> tuple[float, float]:
    """Median milliseconds of an exchange, and of an all-gather."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    forks = get_context("fork")
    answer = forks.SimpleQueue()
    processes = [
        forks.Process(target=rank_main, args=(rank, ranks, port, rounds, answer.put), daemon=True)
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    ends = time.monotonic() + ANSWER_S
    for process in processes:
        process.join(max(1.0, ends - time.monotonic()))
    if any(process.exitcode for process in processes):
        raise RuntimeError(f"of {ranks} ranks some ended badly")
    ours, theirs = answer.get()
    return ours, theirs


def rank_main(
    rank: int, ranks: int, port: int, rounds: int, tell: Callable[[tuple[float, float]], None]
) -> None:
    import torch
    import torch.distributed as dist

    from gangline_worker.training.agreement import StepNews, exchange

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    group = dist.group.WORLD
    news, row = StepNews(1.0, 0.1), torch.zeros(11, dtype=torch.float64)
    rows = torch.empty(ranks * len(row), dtype=torch.float64)
    taken = []
    for work in (
        lambda: exchange(news, group),
        lambda: dist.all_gather_into_tensor(rows, row, group=group),
    ):
        seconds = []
        for _ in range(rounds):
            dist.barrier()
            began_s = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - began_s)
        taken.append(statistics.median(seconds) * 1e3)
    if rank == 0:
        tell((taken[0], taken[1]))
    dist.barrier()
    os._exit(0)  # the others may be gone: nobody to say goodbye to


def main() -> None:
    import torch  # noqa: F401 -- once, for all that are forked

    import gangline_worker.training.agreement  # noqa: F401

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args()
    figures = {str(ranks): measure(ranks, options.rounds) for ranks in RANKS}
    for ranks, (ours, theirs) in figures.items():
        print(f"{ranks:>3} ranks: exchange {ours:.3f} ms, all-gather {theirs:.3f} ms")
    if options.json:
        options.json.write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
