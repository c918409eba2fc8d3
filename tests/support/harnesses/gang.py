"""Launches the trainer's ranks as real processes, as an agent does, for tests."""

from __future__ import annotations

import ctypes
import itertools
import json
import multiprocessing
import os
import re
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from gangline_worker.checkpoint.commit import committed
from gangline_worker.reporting import report

TINY = "dim=32 layers=2 heads=2 seq_len=32 batch_size=8 warmup_steps=4 data_max_bytes=400000"
DEADLINE_S = 120.0
EXIT_ERROR, EXIT_SETTINGS, EXIT_CHECKPOINT, EXIT_AGENT = 1, 2, 65, 75


@dataclass(frozen=True)
class Run:
    """How one launch of a gang ended."""

    codes: tuple[int | None, ...]
    outputs: tuple[str, ...]
    directory: Path

    def losses(self) -> dict[int, float]:
        """Loss by step, as rank 0 wrote them down, to the last bit."""
        return self.by_step("loss")

    def by_step(self, metric: str) -> dict[int, float]:
        """`loss` or `grad_norm` by step, likewise."""
        lines = (self.directory / "losses.jsonl").read_text().splitlines()
        return {entry["step"]: entry[metric] for entry in map(json.loads, lines)}

    @property
    def text(self) -> str:
        return "\n".join(self.outputs)


_PR_SET_PDEATHSIG = 1
KILL_AT_ENV = "TEST_KILL_AT_STEP"
BAD_LOSS_ENV = "TEST_BAD_LOSS_RANK_FIRST_COUNT_ADDED"
SLOW_LAYER_ENV = "TEST_SLOW_LAYER_RANK"
SLOW_LAYER_S = 0.1
SLOW_DATA_ENV = "TEST_SLOW_DATA_RANK"
SLOW_DATA_S = 2.5
NO_DATA_ENV = "TEST_NO_DATA_RANK_AFTER_ERROR"
LATE_COPY_ENV = "TEST_LATE_COPY"
SAVE_ENV = "TEST_SAVE_AT_ONCE"
_LAUNCHER = multiprocessing.get_context("forkserver")  # torch is imported once, not once a rank
_LAUNCHER.set_forkserver_preload(["gangline_worker.training.__main__"])


def until_committed(checkpoints: Path) -> None:
    """Wait for any committed checkpoint."""
    ends = time.monotonic() + DEADLINE_S
    while not committed(checkpoints) and time.monotonic() < ends:
        time.sleep(0.005)


def copy_late() -> None:
    """Let the saver's copy begin only when training waits for it, or after a while in vain."""
    from gangline_worker.checkpoint.saver import AsyncSaver

    asked = threading.Event()
    copy, wait_copied = AsyncSaver._copy, AsyncSaver.wait_copied

    def late(self: AsyncSaver, job: Any) -> None:
        asked.wait(2.0)
        copy(self, job)
        asked.clear()

    def ask(self: AsyncSaver) -> float:
        if self.busy:
            asked.set()
        return wait_copied(self)

    AsyncSaver._copy = late  # type: ignore[method-assign]
    AsyncSaver.wait_copied = ask  # type: ignore[method-assign]


def spoil_losses(first: int, count: int, added: float) -> None:
    """Add to this rank's loss in these steps; its own gradients stay as they are."""
    from gangline_worker.training import parallel

    sound, calls = parallel.loss_of, itertools.count(1)

    def spoilt(logits: Any, targets: Any) -> Any:
        loss = sound(logits, targets)
        return loss + added if first <= next(calls) < first + count else loss

    parallel.loss_of = spoilt  # type: ignore[assignment]


def slow_layers() -> None:
    """Let each layer's forward pass take `SLOW_LAYER_S` longer."""
    from gangline_worker.training.model import Layer

    quick = Layer._forward

    def slow(self: Layer, *arguments: Any) -> Any:
        time.sleep(SLOW_LAYER_S)
        return quick(self, *arguments)

    Layer._forward = slow  # type: ignore[method-assign]


def slow_data() -> None:
    """Let each read of a batch take `SLOW_DATA_S` longer."""
    from gangline_worker.data.text import TextData

    quick = TextData.batch

    def slow(self: TextData, *arguments: Any) -> Any:
        time.sleep(SLOW_DATA_S)
        return quick(self, *arguments)

    TextData.batch = slow  # type: ignore[method-assign]


def end_of_data(after: int, error: str) -> None:
    """After so many batches none comes, or reading the next one raises an error."""
    from gangline_worker.data.errors import DataShardError
    from gangline_worker.data.text import TextData

    good, calls = TextData.batch, itertools.count(1)

    def none(self: TextData, *arguments: Any) -> Any:
        if next(calls) <= after:
            return good(self, *arguments)
        if error:
            raise DataShardError("shard-00001.bin", 7, error)
        return threading.Event().wait()

    TextData.batch = none  # type: ignore[method-assign]


def save_at_once() -> None:
    """Let the trainer save what it loaded, instead of training."""
    from gangline_worker.training.agreement import StepNews, summarize
    from gangline_worker.training.trainer import StepResult, Trainer

    def save(self: Trainer) -> None:
        self._save(StepResult(0.0, 0.0, 0.0, 0.0), summarize([StepNews(0.0, 0.0)]))
        self._finish()

    Trainer.run = save  # type: ignore[method-assign,assignment]


def run_rank(env: Mapping[str, str], arguments: Sequence[str], log: Path, losses: Path) -> None:
    """The body of a rank's process: as the command, with losses kept to the last bit."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # no rank outlives the tests
    with log.open("w") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", closefd=False)
    for name in [name for name in os.environ if name.startswith("GANGLINE_")]:
        del os.environ[name]
    os.environ.update(env)
    from gangline_worker.training import __main__ as program
    from gangline_worker.training import trainer

    def record(metrics: Mapping[str, float], step: int) -> None:
        report(metrics, step)
        if env["RANK"] == "0" and "loss" in metrics:
            with losses.open("a") as out:
                kept = {name: metrics[name] for name in ("loss", "grad_norm")}
                out.write(json.dumps({"step": step, **kept}) + "\n")
        if step == int(env.get(KILL_AT_ENV, 0)):
            until_committed(Path(env["GANGLINE_CHECKPOINT_DIR"]))
            os.kill(os.getpid(), signal.SIGKILL)

    trainer.report = record  # type: ignore[attr-defined]
    if LATE_COPY_ENV in env:
        copy_late()
    if SAVE_ENV in env:
        save_at_once()
    if env.get(SLOW_DATA_ENV) == env["RANK"]:
        slow_data()
    rank, after, *error = env.get(NO_DATA_ENV, "none 0").split(maxsplit=2)
    if env["RANK"] == rank:
        end_of_data(int(after), "".join(error))
    if env.get(SLOW_LAYER_ENV) == env["RANK"]:
        slow_layers()
    rank, first, count, added = env.get(BAD_LOSS_ENV, "none 0 0 0").split()
    if env["RANK"] == rank:
        spoil_losses(int(first), int(count), float(added))
    try:
        program.leave(program.main(arguments))
    except BaseException:
        traceback.print_exc()
        program.leave(program.EXIT_ERROR)


class Gang:
    """The ranks of one launch, all on this machine; `killed` is (rank, after which step)."""

    def __init__(
        self,
        directory: Path,
        ranks: int,
        settings: Sequence[str],
        *,
        attempt: int = 1,
        resume_from: Path | None = None,
        extra_env: Mapping[str, str] | None = None,
        killed: tuple[int, int] | None = None,
    ) -> None:
        self.directory = directory
        directory.mkdir(exist_ok=True)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        arguments = ["--set", *TINY.split(), *settings]
        self.processes: list[BaseProcess] = []
        for rank in range(ranks):
            env = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": "1",
                "CUDA_VISIBLE_DEVICES": "",
                "GANGLINE_ATTEMPT": str(attempt),
                "GANGLINE_CHECKPOINT_DIR": str(directory / "checkpoints"),
            }
            env.update(extra_env or {})
            if killed is not None and killed[0] == rank:
                env[KILL_AT_ENV] = str(killed[1])
            if resume_from is not None:
                env["GANGLINE_RESUME_FROM"] = str(resume_from)
            log = directory / f"rank-{rank}.log"
            log.touch()
            process = _LAUNCHER.Process(
                target=run_rank, args=(env, arguments, log, directory / "losses.jsonl")
            )
            process.start()
            self.processes.append(process)

    def wait(self) -> Run:
        """Until all ranks have ended, which they must by themselves."""
        ends = time.monotonic() + DEADLINE_S
        for process in self.processes:
            process.join(max(0.1, ends - time.monotonic()))
        codes = tuple(process.exitcode for process in self.processes)
        self.kill()
        logs = tuple(
            (self.directory / f"rank-{r}.log").read_text() for r in range(len(self.processes))
        )
        return Run(codes, logs, self.directory)

    def signal(self, rank: int, number: signal.Signals) -> None:
        """Send a signal to one rank."""
        pid = self.processes[rank].pid
        assert pid is not None
        os.kill(pid, number)

    def kill(self) -> None:
        """End what is left with SIGKILL."""
        for process in self.processes:
            process.kill()
            process.join()

    def wait_for(self, pattern: str) -> None:
        """Until rank 0 has written a line like it."""
        ends = time.monotonic() + DEADLINE_S
        log = self.directory / "rank-0.log"
        while not re.search(pattern, log.read_text()):
            assert time.monotonic() < ends, log.read_text()
            assert self.processes[0].exitcode is None, log.read_text()
            time.sleep(0.01)


def train(
    directory: Path,
    ranks: int,
    *settings: str,
    resume_from: Path | None = None,
    extra_env: Mapping[str, str] | None = None,
) -> Run:
    """Train to the end, which must be reached."""
    run = Gang(directory, ranks, settings, resume_from=resume_from, extra_env=extra_env).wait()
    assert set(run.codes) == {0}, run.text
    return run
