"""The agent's side of `node_check`: runs it, and joins what it says with the newest health."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Literal

from gangline_worker.agent.decide.inputs import NodeChecked
from gangline_worker.agent.host.folders import Folders
from gangline_worker.agent.isolation.rank_exec import tied_command

from .fitness import FitnessLimits, unfit_for
from .node_check import UNFIT
from .source import HealthWatch

Level = Literal["light", "full"]
LIMIT_S = {"light": 60.0, "full": 180.0}
_HEALTH_S = 10.0
_PASSED_ON = ("PATH", "LD_LIBRARY_PATH")


class NodeCheckHost:
    """Runs one check at a time; each ends in one NodeChecked, sent from a thread of its own.

    All methods from one thread that lives as long as the agent.
    """

    def __init__(
        self,
        level: Level,
        folders: Folders,
        limits: FitnessLimits,
        watch: HealthWatch,
        report: Callable[[NodeChecked], None],
        gpus: tuple[int, ...] = (),
    ) -> None:
        """`gpus`, as NVML counts them, are what the node offers, and what is looked at."""
        self._gpus = ",".join(map(str, gpus))
        program = "gangline_worker.agent.health.node_check"
        self._command = ["-m", program, str(folders.data), level, self._gpus]
        self._mark = str(folders.sockets / "check")
        self._limit_s = LIMIT_S[level]
        self._limits = limits
        self._watch = watch
        self._report = report
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The newest check's process; None before the first."""
        return self._process.pid if self._process is not None else None

    def begin(self) -> None:
        """Start a check; the one before has ended."""
        environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        environment |= {"HOME": "/", "OMP_NUM_THREADS": "1"}
        environment |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": self._gpus}
        try:
            self._process = subprocess.Popen(
                tied_command(sys.executable, *self._command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                # By the socket, processes that it leaves behind are found later (sweep.py).
                env={**environment, "GANGLINE_AGENT_SOCKET": self._mark},
                start_new_session=True,
            )
        except OSError as error:
            self._report(NodeChecked((f"its check cannot be started: {error.strerror}",)))
            return
        threading.Thread(
            target=self._wait, args=(self._process,), name="node-check", daemon=True
        ).start()

    def stop(self) -> None:
        """End the check that runs."""
        if self._process is not None and self._process.poll() is None:
            _kill(self._process.pid)

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        failures = (*self._found(process), *self._unhealthy())
        self._report(NodeChecked(failures))

    def _found(self, process: subprocess.Popen[bytes]) -> tuple[str, ...]:
        try:
            output, errors = process.communicate(timeout=self._limit_s)
        except subprocess.TimeoutExpired:
            _kill(process.pid)
            process.communicate()
            return (f"its check did not end within {self._limit_s:.0f} s",)
        if process.returncode == UNFIT:
            return tuple(output.decode(errors="replace").splitlines())
        if process.returncode:
            last = errors.decode(errors="replace").splitlines()[-1:] or ["it said nothing"]
            return (f"its check ended with status {process.returncode}: {last[0]}",)
        return ()

    def _unhealthy(self) -> tuple[str, ...]:
        if not self._watch.was_read(_HEALTH_S):
            return (f"its health was not read within {_HEALTH_S:.0f} s",)
        reading = self._watch.newest
        return () if reading is None else unfit_for(reading, self._limits)


def _kill(session: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(session, signal.SIGKILL)
