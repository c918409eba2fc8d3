"""The agent's side of `zygote`: keeps the process running, and has ranks forked by it."""

from __future__ import annotations

import array
import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import structlog

from .isolation_rooms import Confinement
from .zygote import TOKEN_CHARS, TOKEN_VARIABLE, ZygoteRequest

log = structlog.get_logger(__name__)

_ANSWER_S = 5.0
_PAUSE_S = 10.0
"""Between two starts of a zygote that does not live."""
_PYTHONS = frozenset({"python", "python3", Path(sys.executable).name, sys.executable})


def warm_arguments(command: tuple[str, ...]) -> tuple[str, ...] | None:
    """What follows `python` in a command that a zygote can run; None for all others."""
    if len(command) < 2 or command[0] not in _PYTHONS:
        return None
    if command[1] == "-m":
        return command[1:] if len(command) > 2 else None
    return command[1:] if command[1].endswith(".py") else None


class ForkedRank:
    """A rank that a zygote forked and that waits at its gate; else as `subprocess.Popen`."""

    def __init__(self, pid: int, stdout: IO[bytes], stderr: IO[bytes], gate: int) -> None:
        if pid < 1:  # as the number of a group it would be the agent's own
            raise ValueError(f"{pid} is no process")
        self.pid = pid
        self.stdout = stdout
        self.stderr = stderr
        self._gate = gate

    def open_gate(self) -> None:
        """Let it begin, once it is known to be no orphan."""
        os.write(self._gate, b"1")
        os.close(self._gate)

    def wait(self) -> int:
        """Collect its status: its exit code, or the negative number of a signal."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


class ZygoteHost:
    """Runs the zygote. All methods from one thread that lives as long as the agent."""

    def __init__(self, socket_folder: Path) -> None:
        self._mark = str(socket_folder / "zygote")
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._ready = False
        self._start_after_s = 0.0

    @property
    def pid(self) -> int | None:
        """The process, when it runs."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start the process; it is ready some seconds later, and ranks start cold until then."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "gangline_worker.agent.zygote", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={
                    "PATH": os.environ.get("PATH", ""),
                    "HOME": "/",
                    "LANG": "C.UTF-8",
                    "PYTHONUNBUFFERED": "1",
                    "OMP_NUM_THREADS": "1",
                    # By these the ranks are found when nobody else knows them (sweep.py).
                    "GANGLINE_AGENT_SOCKET": self._mark,
                    TOKEN_VARIABLE: "." * TOKEN_CHARS,  # no token has a dot
                },
                start_new_session=True,
                umask=0o077,
                pass_fds=(theirs.fileno(),),
            )
        ours.settimeout(_ANSWER_S)
        self._control = ours
        self._ready = False
        self._start_after_s = time.monotonic() + _PAUSE_S

    def tick(self) -> None:
        """See whether it is ready, and start it again when it died."""
        self.is_ready()
        process = self._process
        if process is not None and process.poll() is not None:
            log.error("zygote.died", status=process.returncode)
            self.stop()
        if self._process is None and time.monotonic() >= self._start_after_s:
            self.start()

    def stop(self) -> None:
        """End the process; what it has forked goes on."""
        if self._control is not None:
            self._control.close()
            self._control = None
        self._ready = False
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def fork(
        self,
        arguments: tuple[str, ...],
        environment: Mapping[str, str],
        folder: Path,
        confinement: Confinement,
    ) -> ForkedRank | None:
        """A rank that waits at its gate; None when it has to be started cold."""
        if self._control is None or not self.is_ready():
            return None
        request = ZygoteRequest(arguments, environment, str(folder), confinement.orders)
        room = [] if confinement.room is None else [confinement.room]
        out_read, out_write = os.pipe2(os.O_CLOEXEC)
        err_read, err_write = os.pipe2(os.O_CLOEXEC)
        gate_read, gate_write = os.pipe2(os.O_CLOEXEC)
        try:
            passed = [out_write, err_write, gate_read, *room]
            answer = self._ask(self._control, request, passed)
        except OSError as error:  # `tick` starts another
            log.warning("zygote.lost", error=str(error))
            self.stop()
            answer = {}
        finally:
            for descriptor in (out_write, err_write, gate_read):
                os.close(descriptor)
        pid = answer.get("pid")
        if isinstance(pid, int):
            out, err = os.fdopen(out_read, "rb", 0), os.fdopen(err_read, "rb", 0)
            return ForkedRank(pid, out, err, gate_write)
        for descriptor in (out_read, err_read, gate_write):
            os.close(descriptor)
        if answer:
            log.info("zygote.refused", why=answer.get("refused"), program=arguments[:2])
        return None

    def is_ready(self) -> bool:
        """Whether it can fork."""
        if self._control is not None and not self._ready:
            with contextlib.suppress(OSError):  # it died: see `tick`
                if select.select([self._control], [], [], 0.0)[0]:
                    self._ready = "ready" in self._read_answer(self._control)
                    log.info("zygote.ready")
        return self._ready

    def _ask(
        self, control: socket.socket, request: ZygoteRequest, descriptors: list[int]
    ) -> dict[str, object]:
        """Its answer. Raises OSError when it gives none."""
        frame = request.encode()
        passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        control.sendmsg([frame[:4]], passed)
        control.sendall(frame[4:])
        return self._read_answer(control)

    @staticmethod
    def _read_answer(control: socket.socket) -> dict[str, object]:
        """One line. Raises OSError at the end of the stream, or when it does not come in time."""
        line = bytearray()
        while not line.endswith(b"\n"):
            part = control.recv(1)
            if not part:
                raise BrokenPipeError("it ended")
            line += part
        found: dict[str, object] = json.loads(line)
        return found
