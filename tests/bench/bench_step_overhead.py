"""What reporting costs a training step: blocks with and without it, interleaved, in one process.

`python tests/bench/bench_step_overhead.py [--blocks N] [--json FILE]`. One rank trains the
demo-size model against an agent's end that reads and drops all that comes. Blocks of at least five
flush periods alternate between reporting and not; the figure is the median ratio of neighbours,
which a slow drift of the machine leaves alone. It also times the call itself.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from harness import Context, Result, in_own_process

from gangline_worker import reporting
from gangline_worker.agent_line import FLUSH_PERIOD_S, Reporter
from gangline_worker.training.config import TrainConfig
from gangline_worker.training.trainer import Trainer
from gangline_worker.training.world import join_world

BUDGET_RATIO = 1.01
Log = Callable[[Mapping[str, float], int], None]


def drain(server: socket.socket) -> None:
    """Be an agent that only listens."""
    rank, _ = server.accept()
    while rank.recv(1 << 16):
        pass


def connect(folder: Path) -> Reporter:
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(str(folder / "agent.sock"))
    server.listen()
    threading.Thread(target=drain, args=(server,), daemon=True).start()
    os.environ[reporting.SOCKET_ENV] = str(folder / "agent.sock")
    return reporting.reporter()


def report_step(metrics: Mapping[str, float], step: int) -> None:
    """One step's calls of a training script."""
    reporting.report(metrics, step)
    reporting.should_stop()
    reporting.should_checkpoint()


def block_s(
    trainer: Trainer, steps: int, log: Log | None, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Seconds a step of one block, logged by `log` if given; metrics are those of the trainer."""
    started = clock()
    for _ in range(steps):
        result = trainer.train_step()
        if log is not None:
            metrics = {
                "loss": result.loss,
                "lr": result.lr,
                "grad_norm": result.grad_norm,
                "tokens_per_s": 1e4,
                "mfu": 0.4,
                "data_wait_s": result.data_wait_s,
                "step_s": 0.1,
            }
            log(metrics, trainer.step)
    return (clock() - started) / steps


def pairs_of_blocks(
    trainer: Trainer,
    steps: int,
    count: int,
    log: Log,
    clock: Callable[[], float] = time.perf_counter,
) -> list[float]:
    """The ratios of steps with `log` to steps without, of `count` pairs in turns."""
    ratios = []
    for index in range(count):
        order = (log, None) if index % 2 else (None, log)
        taken = {on is not None: block_s(trainer, steps, on, clock) for on in order}
        ratios.append(taken[True] / taken[False])
    return ratios


def call_ns(calls: int = 200_000) -> float:
    metrics = dict.fromkeys(("loss", "lr", "grad_norm", "tokens_per_s", "mfu", "a", "b"), 1.0)
    started = time.perf_counter()
    for step in range(calls):
        reporting.report(metrics, step)
    return (time.perf_counter() - started) / calls * 1e9


def run(context: Context) -> list[Result]:
    """The ratio of steps with reports to steps without, and the cost of one call."""
    blocks = context.repeats(20, 6)
    figures = in_own_process("bench_step_overhead", "--blocks", str(blocks))
    low, high = figures["ratio_quartiles"]
    note = f"{blocks} pairs of blocks, quartiles {low:.3f}..{high:.3f}"
    step = f"of a {figures['step_ms']:.0f} ms step: {figures['call_share_of_step']:.4%}"
    return [
        context.result("step_overhead_ratio", figures["ratio_median"], "x", note=note),
        context.result("step_report_call_us", figures["report_call_ns"] / 1e3, "us", note=step),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=20, help="pairs of blocks")
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args()
    os.environ.pop("GANGLINE_CHECKPOINT_DIR", None)
    with tempfile.TemporaryDirectory() as folder:
        connect(Path(folder))
        config = TrainConfig(batch_size=4, steps=10**6)
        trainer = Trainer(config, join_world(60), None)
        warm = block_s(trainer, 10, None)
        steps = max(5, round(5 * FLUSH_PERIOD_S / warm))
        ratios = pairs_of_blocks(trainer, steps, options.blocks, report_step)
        nanoseconds = call_ns()
        step_ms = block_s(trainer, steps, None) * 1e3
    low, median, high = statistics.quantiles(ratios, n=4)
    figures = {
        "step_ms": step_ms,
        "ratio_median": median,
        "ratio_quartiles": [low, high],
        "report_call_ns": nanoseconds,
        "call_share_of_step": nanoseconds / step_ms / 1e6,
        "budget_ratio": BUDGET_RATIO,
    }
    print(f"pairs of {steps}-step blocks   {len(ratios)}")
    print(f"step without reports       {step_ms:.1f} ms")
    print(f"step with / without        {median:.4f}  (quartiles {low:.4f} .. {high:.4f})")
    print(f"one report() call          {nanoseconds:,.0f} ns ({figures['call_share_of_step']:.5%})")
    print(
        f"budget                     {BUDGET_RATIO}: {'kept' if median <= BUDGET_RATIO else 'NOT'}"
    )
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2))
    return int(median > BUDGET_RATIO)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # the process group has no peer left
