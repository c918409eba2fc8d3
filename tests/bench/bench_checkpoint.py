"""What a checkpoint costs training, and how long it takes, beside torch's own and the limits.

`python tests/bench/bench_checkpoint.py [--rounds N] [--gpus N] [--json FILE]`. Two ranks on CPUs
train 134 M parameters sharded by FSDP2: 1.61 GB with AdamW's state. With `--gpus N` a rank on each
of N GPUs trains 567 M together: 6.8 GB. In each round, one after the other:

1. the limits: one copy of a rank's bytes in memory, and one write with fsync, the quicker of a
   plain one and one past the page cache;
2. a quiet step, then a step during which a save is written;
3. a save while nothing is computed;
4. torch's `dcp.save` of the same tensors, and every other round `async_save` beside a step;
5. restores into touched memory, every byte verified, against reading the files into touched
   memory (five times from the page cache, once from the disk), and `dcp.load`, which verifies
   nothing.

A figure of a round is that of the slower rank. At most three checkpoints lie on the disk at once.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from mmap import PAGESIZE
from pathlib import Path
from typing import Any

from harness import Context, Result, in_own_process, scratch
from models import GPU, LARGE

CPU_RANKS = 2
TIMEOUT_S = 420.0
CACHED_RESTORES = 5  # in a round: one takes 0.1 s, which another process's moment would spoil
PLAIN_CHUNK_BYTES = 4 << 20
DIRECT_CHUNK_BYTES = 16 << 20
_PR_SET_PDEATHSIG = 1

Figures = dict[str, list[float]]


class Bench:
    """One rank of the benchmark; torch is imported by the ranks alone."""

    def __init__(self, folder: Path, gpus: int) -> None:
        import torch
        import torch.distributed as dist

        from gangline_worker.training.config import read_settings
        from gangline_worker.training.state import tensors_of
        from gangline_worker.training.trainer import Trainer
        from gangline_worker.training.world import join_world

        self.torch, self.dist = torch, dist
        self.folder = folder
        self.world = join_world(300)
        self.ranks = gpus or CPU_RANKS
        config = read_settings(None, GPU if gpus else LARGE, [])
        self.trainer = Trainer(config, self.world, None)
        self.tensors = tensors_of(self.trainer.model.plain, self.trainer.optimizer)
        gc.collect()
        gc.freeze()  # as in ranks that an agent starts: no collection walks all that torch imported
        self.saved_bytes = 0.0
        self.figures: Figures = defaultdict(list)

    def slowest(self, value: float) -> float:
        """The largest of all ranks' values."""
        found = self.torch.tensor([value], dtype=self.torch.float64, device=self.world.device)
        self.dist.all_reduce(found, op=self.dist.ReduceOp.MAX)
        return float(found.item())

    def timed(self, work: Callable[[], object]) -> float:
        """Seconds of the slower rank, begun together."""
        self.settle()
        self.dist.barrier()
        started = time.perf_counter()
        work()
        self.settle()
        return self.slowest(time.perf_counter() - started)

    def settle(self) -> None:
        """Until a GPU has done all that was asked of it."""
        if self.world.device.type == "cuda":
            self.torch.cuda.synchronize()

    def step(self) -> float:
        return self.timed(self.trainer.train_step)

    def begin(self) -> None:
        self.trainer.checkpointer.begin(self.trainer.step, {}, {})

    def ended(self) -> dict[str, float]:
        """Wait for the save and give its figures, those of the slower rank."""
        self.trainer.checkpointer.finish()
        found = self.trainer.checkpointer.metrics()
        if "checkpoint_failures" in found:
            raise RuntimeError("a save failed; see its rank's output")
        self.saved_bytes = found["checkpoint_bytes"]
        return {name: self.slowest(found[name]) for name in sorted(found)}

    def limits(self) -> float:
        """Seconds of one copy in memory and one write with fsync, the quicker of two ways."""
        from gangline_worker.checkpoint.staging import staging

        torch = self.torch
        size = int(self.saved_bytes)
        on_gpu = self.world.device.type == "cuda"
        source = torch.ones(size, dtype=torch.uint8, device=self.world.device)
        target = torch.zeros(size, dtype=torch.uint8, pin_memory=on_gpu)
        copy_s = self.timed(lambda: target.copy_(source))
        path = self.folder / f"plain-{self.world.rank}"
        write_s = self.timed(lambda: plain_write(path, target.numpy().data))
        path.unlink()
        pages = staging(size, pinned=False).numpy().data
        direct_s = self.timed(lambda: direct_write(path, pages))
        path.unlink()
        self.figures["copy_s"].append(copy_s)
        self.figures["plain_write_s"].append(write_s)
        self.figures["direct_write_s"].append(direct_s)
        return copy_s + min(write_s, direct_s)

    def saves(self, limit_s: float) -> None:
        figures = self.figures
        quiet_s = self.step()
        self.begin()
        step_s = self.step()
        found = self.ended()
        figures["quiet_step_s"].append(quiet_s)
        figures["blocked_ms"].append(found["checkpoint_blocked_s"] * 1e3)
        figures["save_s"].append(found["checkpoint_write_s"])
        figures["save_ratio"].append(found["checkpoint_write_s"] / limit_s)
        figures["step_ratio"].append(step_s / quiet_s)
        self.dist.barrier()
        self.trainer.step += 1  # another name for the checkpoint; nothing is computed
        self.begin()
        self.trainer.checkpointer.before_update()
        found = self.ended()
        figures["idle_save_s"].append(found["checkpoint_write_s"])
        figures["idle_save_ratio"].append(found["checkpoint_write_s"] / limit_s)

    def dcp(self, *, asynchronous: bool) -> None:
        """The saves of torch itself, and its load of the last."""
        import torch.distributed.checkpoint as dcp

        figures, path = self.figures, self.folder / "dcp"
        figures["dcp_save_s"].append(
            self.timed(lambda: dcp.save(self.tensors, checkpoint_id=path, no_dist=False))
        )
        loaded = self.fresh()
        figures["dcp_load_s"].append(
            self.timed(lambda into=loaded: dcp.load(into, checkpoint_id=path))
        )
        del loaded
        self.remove(path)
        if asynchronous:
            group = self.dist.new_group(backend="gloo")
            pending: list[Any] = []
            started = time.perf_counter()
            blocked_s = self.timed(
                lambda: pending.append(
                    dcp.async_save(self.tensors, checkpoint_id=path, process_group=group)
                )
            )
            figures["dcp_async_blocked_ms"].append(blocked_s * 1e3)
            figures["dcp_async_step_ratio"].append(self.step() / figures["quiet_step_s"][-1])
            pending[0].result()
            figures["dcp_async_s"].append(self.slowest(time.perf_counter() - started))
            self.remove(path)

    def remove(self, path: Path) -> None:
        self.dist.barrier()
        if self.world.rank == 0:
            shutil.rmtree(path)
        self.dist.barrier()

    def fresh(self) -> dict[str, Any]:
        """Tensors of the same kind, their memory touched before: that does not count as a read."""
        return {name: self.torch.zeros_like(tensor) + 0 for name, tensor in self.tensors.items()}

    def restores(self) -> None:
        from gangline_worker.checkpoint.commit import committed
        from gangline_worker.checkpoint.loader import Checkpoint
        from gangline_worker.checkpoint.local import holdings

        folder = committed(self.folder / "checkpoints")[-1]
        shard = folder / f"rank-{self.world.rank:05d}.bin"

        def restore(fresh: dict[str, Any]) -> None:
            checkpoint = Checkpoint(folder, rank=self.world.rank, world_size=self.ranks)
            checkpoint.fill(holdings(fresh, self.world.rank, self.ranks))

        plain_read(shard, self.torch.ones(shard.stat().st_size, dtype=self.torch.uint8))
        for name, cached in (*[("restore", True)] * CACHED_RESTORES, ("restore_disk", False)):
            taken = []
            for reading in (True, False):
                if not cached:
                    forget_pages(shard)
                if reading:
                    buffer = self.torch.ones(shard.stat().st_size, dtype=self.torch.uint8)
                    taken.append(self.timed(lambda into=buffer: plain_read(shard, into)))
                    del buffer
                else:
                    fresh = self.fresh()
                    taken.append(self.timed(lambda into=fresh: restore(into)))
                    self.check(fresh)
                    del fresh
            self.figures[f"{name}_read_s"].append(taken[0])
            self.figures[f"{name}_s"].append(taken[1])
            self.figures[f"{name}_ratio"].append(taken[1] / taken[0])

    def check(self, restored: dict[str, Any]) -> None:
        """What was restored is what is trained: nothing was computed since the save."""
        for name, tensor in restored.items():
            if not self.torch.equal(local(tensor), local(self.tensors[name])):
                raise RuntimeError(f"{name} did not come back as it was saved")

    def run(self, rounds: int) -> Figures:
        self.step()
        self.begin()
        self.step()
        self.ended()  # to learn how many bytes, and to be warm
        for index in range(rounds):
            self.saves(self.limits())
            self.restores()
            self.dcp(asynchronous=index % 2 == 0)
            gc.collect()
            if self.world.rank == 0:
                print(f"round {index + 1} of {rounds}", file=sys.stderr, flush=True)
        self.figures["checkpoint_gb"].append(self.saved_bytes * self.ranks / 1e9)
        return self.figures


def local(tensor: Any) -> Any:
    """What this rank holds of it."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def plain_write(path: Path, data: memoryview) -> None:
    with path.open("wb", buffering=0) as out:
        for start in range(0, len(data), PLAIN_CHUNK_BYTES):
            out.write(data[start : start + PLAIN_CHUNK_BYTES])
        os.fsync(out.fileno())


def direct_write(path: Path, data: memoryview) -> None:
    """Past the page cache; what does not fill a page is left out."""
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o600)
    for start in range(0, len(data) // PAGESIZE * PAGESIZE, DIRECT_CHUNK_BYTES):
        end = min(start + DIRECT_CHUNK_BYTES, len(data) // PAGESIZE * PAGESIZE)
        os.pwrite(target, data[start:end], start)
    os.fsync(target)
    os.close(target)


def plain_read(path: Path, into: Any) -> None:
    view = into.numpy().data
    with path.open("rb", buffering=0) as source:
        for start in range(0, len(view), PLAIN_CHUNK_BYTES):
            source.readinto(view[start : start + PLAIN_CHUNK_BYTES])


def forget_pages(path: Path) -> None:
    """Drop a file from the page cache, so that it is read from the disk."""
    with path.open("rb") as source:
        os.posix_fadvise(source.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def rank_main(folder: Path, rounds: int, gpus: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    warnings.filterwarnings("ignore")
    bench = Bench(folder, gpus)
    figures = bench.run(rounds)
    if bench.world.rank == 0:
        (folder / "figures.json").write_text(json.dumps(figures))
    bench.dist.barrier()


def measure(rounds: int, gpus: int = 0) -> Figures:
    """Run the ranks as processes of their own; all they write goes away with their folder."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with scratch() as folder:
        ranks = []
        try:
            count = gpus or CPU_RANKS
            for rank in range(count):
                env = {name: v for name, v in os.environ.items() if not name.startswith("GANGLINE")}
                env |= {
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "WORLD_SIZE": str(count),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                    "OMP_NUM_THREADS": "1",
                    "CUDA_VISIBLE_DEVICES": ",".join(str(index) for index in range(gpus)),
                    "GANGLINE_CHECKPOINT_DIR": str(folder / "checkpoints"),
                }
                command = [sys.executable, __file__, "--rank-of", str(folder)]
                command += ["--rounds", str(rounds), "--gpus", str(gpus)]
                ranks.append(subprocess.Popen(command, env=env))
            ends = time.monotonic() + TIMEOUT_S
            codes = [rank.wait(max(1.0, ends - time.monotonic())) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
        if any(codes):
            raise RuntimeError(f"the ranks ended with {codes}")
        figures: Figures = json.loads((folder / "figures.json").read_text())
        return figures


def run(context: Context) -> list[Result]:
    """Blocked time, saves and restores as ratios to this machine's limits, and torch's own."""
    figures = in_own_process("bench_checkpoint", "--rounds", str(context.repeats(5, 1)))

    def median(name: str, unit: str, *, note: str = "") -> Result:
        return context.median(f"checkpoint_{name}", figures[name], unit, note=note)

    def middle(name: str) -> float:
        return statistics.median(figures[name])

    limit = (
        f"{middle('copy_s'):.2f} s copy; write with fsync {middle('direct_write_s'):.2f} s, "
        f"through the page cache {middle('plain_write_s'):.2f} s"
    )
    torch_async = (
        f"dcp.async_save blocks {middle('dcp_async_blocked_ms'):.0f} ms, ends after "
        f"{middle('dcp_async_s'):.1f} s, its step takes {middle('dcp_async_step_ratio'):.2f}x"
    )
    return [
        median("blocked_ms", "ms", note=torch_async),
        median(
            "save_ratio",
            "x",
            note=f"{middle('save_s'):.2f} s; {limit}",
        ),
        median(
            "idle_save_ratio",
            "x",
            note=f"{middle('idle_save_s'):.2f} s; dcp.save {middle('dcp_save_s'):.2f} s",
        ),
        median("step_ratio", "x", note=f"of a step of {middle('quiet_step_s'):.1f} s"),
        median(
            "restore_ratio",
            "x",
            note=f"{middle('restore_s'):.2f} s, every byte verified; reading takes "
            f"{middle('restore_read_s'):.2f} s, dcp.load {middle('dcp_load_s'):.2f} s unverified",
        ),
        median(
            "restore_disk_ratio",
            "x",
            note=f"{middle('restore_disk_s'):.2f} s from the disk; reading takes "
            f"{middle('restore_disk_read_s'):.2f} s",
        ),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gpus", type=int, default=0, help="a rank on each, in place of CPUs")
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--rank-of", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_of is not None:
        rank_main(options.rank_of, options.rounds, options.gpus)
        sys.stdout.flush()
        os._exit(0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # its folder goes away then, too
    figures = measure(options.rounds, options.gpus)
    for name, values in sorted(figures.items()):
        each = "  ".join(f"{value:.3f}" for value in values)
        print(f"{name:24} {statistics.median(values):10.3f}   ({each})")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
