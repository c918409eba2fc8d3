"""A gang under torch's own launcher that is made to fail, and when it was back. Unix seconds.

`torchrun` starts each rank in a session of its own, so the gang is not ended as a group of
processes: all that have its folder among their arguments are killed, until there is none.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import psutil

RANKS = 2
SCRIPT = Path(__file__).with_name("torchrun_script.py")
WAIT_S = 90.0
END_S = 10.0
POLL_S = 0.1
SETTLED_STEPS = 15

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RankLine:
    """A line of a rank: it has started, as process `pid`, or has taken a step (`pid` is None)."""

    attempt: int
    time_s: float
    step: int
    pid: int | None = None
    model_import_s: float = 0.0


def told(text: str) -> list[RankLine]:
    """The lines of a rank's file; the last may be half written and is left out then."""
    whole, _, _ = text.rpartition("\n")
    return [RankLine(**json.loads(line)) for line in whole.splitlines()]


def settled(lines: Sequence[RankLine], attempt: int) -> bool:
    """Whether the attempt has saved, which it does every ten steps, and trained on."""
    return sum(line.attempt == attempt and line.pid is None for line in lines) >= SETTLED_STEPS


def first_step(lines: Sequence[RankLine], after: int) -> RankLine | None:
    """The first step of a later attempt than `after`."""
    return next((line for line in lines if line.attempt > after and line.pid is None), None)


class Torchrun:
    """Two ranks of `torchrun_script.py` in this folder; none is left afterwards."""

    def __init__(self, folder: Path, *, max_restarts: int) -> None:
        self._folder, self._output = folder, folder / "output.txt"
        self._max_restarts = max_restarts

    def __enter__(self) -> Self:
        # It ends, and its ranks with it, also if this process is killed.
        command = ["setpriv", "--pdeathsig=KILL", sys.executable, "-m", "torch.distributed.run"]
        command += ["--standalone", f"--nproc-per-node={RANKS}"]
        command += [f"--max-restarts={self._max_restarts}", str(SCRIPT), str(self._folder)]
        settings = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}
        with self._output.open("wb") as output:
            self._launcher = subprocess.Popen(
                command,
                env=os.environ | settings,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        ends = time.monotonic() + END_S
        while left := self._processes():
            if time.monotonic() > ends:
                raise RuntimeError(f"processes of torchrun that cannot be killed: {left}")
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            time.sleep(POLL_S)
        self._launcher.wait(END_S)

    def lines(self, rank: int) -> list[RankLine]:
        """Messages of the rank so far, in all attempts."""
        path = self._folder / f"rank-{rank}.jsonl"
        return told(path.read_text(encoding="utf-8")) if path.exists() else []

    def wait(self, condition: Callable[[], T | None], wait_s: float = WAIT_S) -> T | None:
        """The first true value of `condition`; None: there was none in time."""
        ends = time.monotonic() + wait_s
        while time.monotonic() < ends:
            if found := condition():
                return found
            if self._launcher.poll() is not None:
                output = self._output.read_text(encoding="utf-8", errors="replace")
                raise RuntimeError(f"torchrun ended by itself:\n{output[-2000:]}")
            time.sleep(POLL_S)
        return None

    def wait_settled(self, attempt: int) -> None:
        """Until the attempt has saved a checkpoint and taken steps after it."""
        if not self.wait(lambda: settled(self.lines(0), attempt)):
            raise RuntimeError(f"torchrun's attempt {attempt} took no steps within {WAIT_S:.0f} s")

    def started(self, attempt: int, rank: int) -> RankLine:
        """The report of a rank that has started."""
        return next(line for line in self.lines(rank) if line.attempt == attempt and line.pid)

    def signal(self, attempt: int, rank: int, number: int) -> float:
        """Send a rank a signal; when."""
        process = psutil.Process(self.started(attempt, rank).pid)
        at = time.time()
        process.send_signal(number)
        return at

    def first_step(self, after: int, wait_s: float = WAIT_S) -> RankLine | None:
        """Rank 0's first step in a later attempt than `after`; None: there was none in time."""
        return self.wait(lambda: first_step(self.lines(0), after), wait_s)

    def _processes(self) -> list[psutil.Process]:
        """The launcher and its ranks, those that have just been started among them."""
        mine = str(self._folder)
        return [p for p in psutil.process_iter(["cmdline"]) if mine in (p.info["cmdline"] or ())]
