"""What ranks tell each other between two steps, beside an all-gather of the same numbers.

`agreement_N_ms`: the median of an exchange of N ranks over gloo, all on this machine. 1,024 of them
are threads of one process; fewer are processes.
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
MANY, FEWER = 1024, 256
"""As threads; the fewer for a quick try."""
ANSWER_S = 200.0


def run(context: Context) -> list[Result]:
    """In a process of its own, which forks the ranks after torch is imported."""
    rounds = context.repeats(40, quick=5)
    many = FEWER if context.quick else MANY
    figures = in_own_process("bench_agreement", "--rounds", str(rounds), "--many", str(many))
    results = []
    for ranks in map(str, RANKS):
        ours, theirs = figures[ranks]
        note = f"an all-gather takes {theirs:.2f} ms"
        results.append(context.result(f"agreement_{ranks}_ms", ours, "ms", note=note))
    results.append(context.result(f"agreement_{many}_ms", figures["many_ms"], "ms"))
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

    from gangline_worker.gang_store import gang_store
    from gangline_worker.training.agreement import StepNews, exchange
    from gangline_worker.training.control import open_control

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    group = open_control(gang_store("control"), rank, ranks, ANSWER_S)
    news, row = StepNews(1.0, 0.1), torch.zeros(11, dtype=torch.float64)
    rows = torch.empty(ranks * len(row), dtype=torch.float64)
    taken = []
    for work in (
        lambda: exchange(news, group),
        lambda: dist.all_gather_into_tensor(rows, row),
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
    os._exit(0)  # the others may be gone: no goodbye


def main() -> None:
    import torch.distributed  # once, for all that are forked

    from support.harnesses.many_ranks import agree

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--many", type=int, default=MANY)
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args()
    figures = {str(ranks): measure(ranks, options.rounds) for ranks in RANKS}
    for ranks, (ours, theirs) in figures.items():
        print(f"{ranks:>4} ranks: exchange {ours:.3f} ms, all-gather {theirs:.3f} ms")
    many_ms = agree(torch.distributed.HashStore(), options.many, rounds=10).exchange_ms
    print(f"{options.many:>4} ranks: exchange {many_ms:.3f} ms, as threads")
    if options.json:
        options.json.write_text(json.dumps({**figures, "many_ms": many_ms}))


if __name__ == "__main__":
    main()
