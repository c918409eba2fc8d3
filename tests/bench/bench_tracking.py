"""What `run.log` costs: one call, and a training step, while the server answers and while not.

`python tests/bench/bench_tracking.py [--blocks N] [--calls N] [--json FILE]`. The server is a small
one in a process of its own. Blocks of steps alternate between logging seven metrics and not, as in
bench_step_overhead; each logged block is longer than several periods of both threads of the SDK.
The ratio is of the process's CPU time, which other processes of the machine change less.
Single calls are timed one every 2 ms, so the threads work between and during them. At the end all
points must have arrived once.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench_step_overhead import block_s, pairs_of_blocks
from harness import Context, Result, in_own_process

import gangline
from gangline.tracking import Run
from gangline_worker.training.config import TrainConfig
from gangline_worker.training.trainer import Trainer
from gangline_worker.training.world import join_world
from support.fakes.tracking_server import TOKEN, TrackingStub

BLOCK_S = 3.0
THREADS = {"gangline-write", "gangline-upload"}
CALL_EVERY_S = 0.002
MLFLOW_CALLS = 200
SEVEN = dict.fromkeys(("loss", "lr", "grad_norm", "tokens_per_s", "mfu", "wait_s", "step_s"), 1.0)


def serve() -> None:
    """The server: says its URL; a line of stdin stops or starts it; the last says what it has."""
    stub = TrackingStub()
    stub.start()
    print(stub.url, flush=True)
    for line in sys.stdin:
        if line.strip() == "stop":
            stub.stop()
        elif line.strip() == "start":
            stub.start()
        else:
            print(json.dumps([len(run.points) for run in stub.runs.values()]), flush=True)
            continue
        print("done", flush=True)


class Server:
    """The server's process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.url = self._line()

    def tell(self, word: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        return self._line()

    def end(self) -> None:
        self._process.kill()
        self._process.wait()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def calls_us(run: Run, count: int) -> dict[str, float]:
    """P50 and P99 of single calls, in microseconds."""
    taken = []
    for step in range(count):
        started = time.perf_counter()
        run.log(SEVEN, step=step)
        taken.append((time.perf_counter() - started) * 1e6)
        time.sleep(CALL_EVERY_S)
    cuts = statistics.quantiles(taken, n=100)
    return {"p50": cuts[49], "p99": cuts[98]}


def mlflow_calls_us(url: str, run_id: str, count: int) -> float:
    """P50 of MLflow's client for the same seven metrics, as scripts call it: it waits."""
    from mlflow import MlflowClient
    from mlflow.entities import Metric

    os.environ["MLFLOW_TRACKING_TOKEN"] = TOKEN
    client = MlflowClient(f"{url}/mlflow/teams/nlp")
    taken = []
    for step in range(count):
        started = time.perf_counter()
        now_ms = time.time_ns() // 1_000_000
        client.log_batch(run_id, [Metric(f"m/{name}", 1.0, now_ms, step) for name in SEVEN])
        taken.append((time.perf_counter() - started) * 1e6)
    return statistics.median(taken)


def threads_s() -> float:
    """CPU seconds of the SDK's threads so far."""
    mine = [thread.native_id for thread in threading.enumerate() if thread.name in THREADS]
    files = [Path(f"/proc/self/task/{thread}/schedstat") for thread in mine]
    return sum(int(file.read_text().split()[0]) for file in files) / 1e9


def measure(blocks: int, calls: int) -> dict[str, Any]:
    server = Server()
    os.environ |= {"GANGLINE_URL": server.url, "GANGLINE_TOKEN": TOKEN}
    trainer = Trainer(TrainConfig(batch_size=4, steps=10**6), join_world(60), None)
    steps = max(5, round(BLOCK_S / block_s(trainer, 10, None)))
    logged = 0

    def log(metrics: Mapping[str, float], step: int) -> None:
        nonlocal logged
        logged += len(metrics)
        run.log(metrics, step=step)

    def blocks_with_log() -> dict[str, Any]:
        """Ratios of steps, and the share of a core that the threads take, while one logs."""
        before, started = threads_s(), time.perf_counter()
        ratios = pairs_of_blocks(trainer, steps, blocks, log, time.process_time)
        share = (threads_s() - before) / (time.perf_counter() - started)
        return {"ratios": ratios, "threads_share": share, "call": calls_us(run, calls)}

    figures: dict[str, Any] = {"step_ms": block_s(trainer, steps, None) * 1e3}
    with tempfile.TemporaryDirectory() as folder:
        run = gangline.init(dir=folder)
        figures["up"] = blocks_with_log()
        assert run.id is not None
        figures["mlflow_us"] = mlflow_calls_us(server.url, run.id, MLFLOW_CALLS)
        server.tell("stop")
        figures["away"] = blocks_with_log()
        server.tell("start")
        run.finish(timeout_s=120)
        expected = logged + (2 * calls + MLFLOW_CALLS) * len(SEVEN)
        arrived = json.loads(server.tell("count"))
    server.end()
    assert arrived == [expected], f"{arrived} points arrived of {expected}"
    return figures


def run(context: Context) -> list[Result]:
    """Ratios of steps and quantiles of calls, with the server and without."""
    blocks, calls = context.repeats(12, 4), context.repeats(5000, 1000)
    figures = in_own_process("bench_tracking", "--blocks", str(blocks), "--calls", str(calls))
    note = f"CPU time, {blocks} pairs of blocks of a {figures['step_ms']:.0f} ms step"
    results = []
    for state in ("up", "away"):
        found = figures[state]
        results += [
            context.median(f"tracking_{state}_step_ratio", found["ratios"], "x", note=note),
            context.result(
                f"tracking_{state}_threads", 100 * found["threads_share"], "% of a core"
            ),
            context.result(f"tracking_{state}_log_p50_us", found["call"]["p50"], "us"),
            context.result(f"tracking_{state}_log_p99_us", found["call"]["p99"], "us"),
        ]
    gain = figures["mlflow_us"] / figures["up"]["call"]["p50"]
    note = f"MLflow's client takes {figures['mlflow_us'] / 1e3:.1f} ms"
    return [*results, context.result("tracking_call_gain", gain, "x", note=note)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=12, help="pairs of blocks")
    parser.add_argument("--calls", type=int, default=5000, help="single calls that are timed")
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve()
        return 0
    os.environ.pop("GANGLINE_CHECKPOINT_DIR", None)
    figures = measure(options.blocks, options.calls)
    text = json.dumps(figures, indent=2)
    print(text)
    if options.json:
        options.json.write_text(text)
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # the process group has no peer left
