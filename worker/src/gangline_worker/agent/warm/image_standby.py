"""The agent's side of a standby in a container image: `fresh`, run by the Python of the image.

All that such a process runs may be the user's, so the agent waits for none of its answers.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path

import structlog

from gangline_worker.agent.isolation.cold_start import Launch, start_cold

from . import fresh
from .fresh import COLD_VARIABLES, cold_variable
from .process import WarmRank, found_by
from .rank import WarmRequest

log = structlog.get_logger(__name__)

_PYTHON = re.compile(r"python(3(\.\d+)?)?")
_NICER_BY = 10
_OOM_FIRST, _OOM_OF_RANKS = b"1000", b"500"
_LONGEST = 128 << 10
"""A request of so many bytes fits into the socket at once."""


def image_arguments(command: tuple[str, ...]) -> tuple[str, ...] | None:
    """The arguments after the Python of an image in a command; None for all others."""
    if len(command) < 2 or not _PYTHON.fullmatch(Path(command[0]).name):
        return None
    if command[1] == "-m":
        return command[1:] if len(command) > 2 else None
    return command[1:] if command[1].endswith(".py") else None


class ImageStandby:
    """One process, confined as a rank; its output is that of the rank that it becomes."""

    def __init__(self, launch: Launch, socket_folder: Path) -> None:
        """Start it as this rank would be, in a sandbox that has none of a gang's folders.

        It dies with the calling thread. Raises OSError.
        """
        self._environment = {
            **_of_start(launch.environment),
            **found_by(socket_folder),
        }
        self._control, theirs = socket.socketpair()
        self._control.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * _LONGEST)
        program = _program()
        try:
            command = (launch.command[0], f"/proc/self/fd/{program}", str(theirs.fileno()))
            own = Launch(
                launch.rank,
                command,
                self._environment,
                Path("/"),
                launch.confinement,
                in_image=True,
            )
            self._process = start_cold(own, (program, theirs.fileno()))
        finally:
            theirs.close()
            os.close(program)
        self.pid = self._process.pid
        self._said = b""
        _give_way(self.pid, _NICER_BY)

    def is_ready(self) -> bool:
        """Whether it can become a rank now."""
        if not self._said:
            try:
                self._said = self._control.recv(1, socket.MSG_DONTWAIT) or fresh.UNFIT
            except BlockingIOError:
                return False
            except OSError:
                self._said = fresh.UNFIT
            if self._said == fresh.READY:
                _give_way(self.pid, 0)
            log.info("image_standby.ready" if self.is_fit else "image_standby.unfit", pid=self.pid)
        return self._said == fresh.READY and self._process.poll() is None

    @property
    def is_fit(self) -> bool:
        """False once it is known that it will never be ready."""
        return self._said in {b"", fresh.READY}

    def rank(self, request: WarmRequest) -> WarmRank | None:
        """A rank that waits at its gate; None when it has to be started cold."""
        frame = request.encode()
        name = cold_variable(request.environment, self._environment)
        if not self.is_ready() or name is not None or len(frame) > _LONGEST:
            log.info("image_standby.refused", pid=self.pid, variable=name)
            return None
        _write_oom(self.pid, _OOM_OF_RANKS)
        try:
            sent = self._control.send(frame, socket.MSG_DONTWAIT)
        except OSError:
            sent = 0
        stdout, stderr = self._process.stdout, self._process.stderr
        if sent < len(frame) or stdout is None or stderr is None:
            return None
        return WarmRank(self._process, stdout, stderr, self._control.detach())

    def stop(self) -> None:
        """End it, if it has not become a rank."""
        self._control.close()
        self._process.kill()
        self._process.wait()
        for pipe in filter(None, (self._process.stdout, self._process.stderr)):
            pipe.close()


def _of_start(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that an interpreter reads when it starts, and none that is secret."""
    read = (*COLD_VARIABLES, "LANG", "LC_")
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(read) or name in {"PATH", "HOME"}
    }


def _program() -> int:
    """A file in memory with what it runs: an image has nothing of the agent's."""
    handle = os.memfd_create("standby")
    with open(handle, "wb", closefd=False) as file:
        file.write(Path(fresh.__file__).read_bytes())
    return handle


def _give_way(pid: int, by: int) -> None:
    """Leave CPUs to the ranks that run, as far as the system lets it take them back later.

    And be the first to go when memory runs out.
    """
    own = os.getpriority(os.PRIO_PROCESS, 0)
    try:
        for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
            os.setpriority(os.PRIO_PROCESS, int(task), own + by)
    except OSError:
        return
    if not by:  # by now it has set its own
        _write_oom(pid, _OOM_FIRST)


def _write_oom(pid: int, score: bytes) -> None:
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/oom_score_adj").write_bytes(score)
