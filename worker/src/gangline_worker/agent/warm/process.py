"""The agent's side of `rank`: one warm interpreter, and the ranks that come of it."""

from __future__ import annotations

import array
import contextlib
import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Protocol

import structlog

from gangline_worker.agent.host.drivers import driver_variables
from gangline_worker.agent.host.forked import Forked

from .fresh import SOCKET_VARIABLE, TOKEN_CHARS, TOKEN_VARIABLE
from .rank import WarmRequest

log = structlog.get_logger(__name__)

_ANSWER_S = 5.0
_PYTHONS = frozenset({"python", "python3", Path(sys.executable).name, sys.executable})


def warm_arguments(command: tuple[str, ...]) -> tuple[str, ...] | None:
    """The arguments after `python` of a command that can start warm; None for all others."""
    if len(command) < 2 or command[0] not in _PYTHONS:
        return None
    if command[1] == "-m":
        return command[1:] if len(command) > 2 else None
    return command[1:] if command[1].endswith(".py") else None


def found_by(socket_folder: Path) -> dict[str, str]:
    """Variables by which ranks that are left behind are found later (sweep.py)."""
    return {
        SOCKET_VARIABLE: str(socket_folder / "warm"),
        TOKEN_VARIABLE: "." * TOKEN_CHARS,  # no token has a dot
    }


class WarmRank:
    """A rank that waits at its gate; else as `subprocess.Popen`."""

    def __init__(
        self,
        process: Forked | subprocess.Popen[bytes],
        stdout: IO[bytes],
        stderr: IO[bytes],
        gate: int,
    ) -> None:
        self.pid = process.pid
        self.stdout = stdout
        self.stderr = stderr
        self._process = process
        self._gate = gate

    def open_gate(self) -> None:
        """Let it begin, once it is known to be no orphan."""
        os.write(self._gate, b"1")
        os.close(self._gate)

    def wait(self) -> int:
        """Collect its status: its exit code, or the negative number of a signal."""
        return self._process.wait()


class WarmStart(Protocol):
    """Starts ranks warm. All methods from one thread that lives as long as the agent."""

    @property
    def pids(self) -> tuple[int, ...]:
        """Its own processes that run."""

    def start(self) -> None:
        """Start its processes; until they are ready, some seconds later, ranks start cold."""

    def tick(self) -> None:
        """See which are ready, and start others for those that are gone."""

    def stop(self) -> None:
        """End its processes; the ranks keep running."""

    def rank(self, request: WarmRequest, sandbox: int | None) -> WarmRank | None:
        """A rank that waits at its gate; None when it has to be started cold."""


class Refused(Exception):
    """It has to be started cold; the message says why."""


class WarmProcess:
    """A process that takes requests over a socket; `name` is its module's: zygote or standby."""

    def __init__(
        self, name: str, socket_folder: Path, more: Mapping[str, str] | None = None
    ) -> None:
        """Start it, with `more` in its environment; it is ready some seconds later."""
        self._name = name
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"{__package__}.{name}", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={
                    "PATH": os.environ.get("PATH", ""),
                    "HOME": "/",
                    "LANG": "C.UTF-8",
                    "PYTHONUNBUFFERED": "1",
                    "OMP_NUM_THREADS": "1",
                    **driver_variables(),  # as ranks have them
                    **found_by(socket_folder),
                    **(more or {}),
                },
                start_new_session=True,
                umask=0o077,
                pass_fds=(theirs.fileno(),),
            )
        self._control.settimeout(_ANSWER_S)
        self.pid = self._process.pid
        self.unfit: str | None = None
        self._ready = False

    def is_ready(self) -> bool:
        """Whether it takes requests; else `unfit` says why it never will, once that is known."""
        if not self._ready and self.unfit is None:
            with contextlib.suppress(OSError):  # it died: see `status`
                if select.select([self._control], [], [], 0.0)[0]:
                    said = self._read_answer()
                    self._ready = "ready" in said
                    self.unfit = None if self._ready else str(said.get("unfit"))
                    event = f"{self._name}.{'ready' if self._ready else 'unfit'}"
                    log.info(event, pid=self.pid)
        return self._ready

    def status(self) -> int | None:
        """Its exit status as of `subprocess.Popen`; None while it runs."""
        return self._process.poll()

    def stop(self) -> None:
        """End it; the processes that it has forked keep running."""
        self._control.close()
        self._process.kill()
        self._process.wait()

    def rank(self, request: WarmRequest, sandbox: int | None) -> WarmRank:
        """A rank that waits at its gate. Raises Refused, OSError when it gives no answer."""
        out_read, out_write = os.pipe2(os.O_CLOEXEC)
        err_read, err_write = os.pipe2(os.O_CLOEXEC)
        try:
            pid, gate = self.request(request, out_write, err_write, sandbox)
        except BaseException:
            os.close(out_read)
            os.close(err_read)
            raise
        finally:
            os.close(out_write)
            os.close(err_write)
        out, err = os.fdopen(out_read, "rb", 0), os.fdopen(err_read, "rb", 0)
        return WarmRank(self._process if pid == self.pid else Forked(pid), out, err, gate)

    def request(
        self, request: WarmRequest, stdout: int, stderr: int, sandbox: int | None = None
    ) -> tuple[int, int]:
        """The pid of what waits, and its gate. Raises Refused, OSError without an answer."""
        gate_read, gate_write = os.pipe2(os.O_CLOEXEC)
        try:
            passed = [stdout, stderr, gate_read, *([] if sandbox is None else [sandbox])]
            answer = self._ask(request, passed)
            pid = answer.get("pid")
            if not isinstance(pid, int):
                raise Refused(str(answer.get("refused")))
        except BaseException:
            os.close(gate_write)
            raise
        finally:
            os.close(gate_read)
        return pid, gate_write

    def close(self) -> None:
        """Ask for no more: it is a rank now, or has forked the only one that it was for."""
        self._control.close()

    def _ask(self, request: WarmRequest, descriptors: list[int]) -> dict[str, object]:
        """Its answer. Raises OSError when it gives none."""
        frame = request.encode()
        passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        self._control.sendmsg([frame[:4]], passed)
        self._control.sendall(frame[4:])
        return self._read_answer()

    def _read_answer(self) -> dict[str, object]:
        """One line. Raises OSError at the end of the stream, or when it does not come in time."""
        line = bytearray()
        while not line.endswith(b"\n"):
            part = self._control.recv(1)
            if not part:
                raise BrokenPipeError("it ended")
            line += part
        found: dict[str, object] = json.loads(line)
        return found
