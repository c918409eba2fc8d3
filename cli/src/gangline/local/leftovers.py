"""The owner of a data directory, and the processes that a killed owner left.

The kernel ends an owner's children with it, but not theirs. A leftover is known by the environment
variable GANGLINE_SUPERVISED_BY with exactly this directory, which children of children inherit.
Nothing else is ever touched, nor the caller's own process and its ancestors.
"""

import contextlib
import fcntl
import os
from pathlib import Path

import psutil

from gangline.local.process_model import SupervisorError

MARK = "GANGLINE_SUPERVISED_BY"
_ROUNDS = 5
_END_S = 2.0


class DataDirLock:
    """The exclusive right to supervise one data directory; freed by the kernel at death."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / "run" / "lock"
        self._fd = -1

    def acquire(self) -> None:
        """Take the lock, or raise SupervisorError that names the holder."""
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(fd, 32).decode("ascii", errors="replace").strip() or "unknown"
            os.close(fd)
            data_dir = self._path.parent.parent
            raise SupervisorError(
                f"data directory {data_dir} is in use by a running platform (pid {holder}); "
                "stop that one first, or choose another data directory"
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._fd = fd

    def release(self) -> None:
        """Give the lock back; harmless when it is not held."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def end_strays(data_dir: Path) -> list[int]:
    """Kill every process of this user that carries the directory's mark; return their pids."""
    mark = str(data_dir.resolve())
    spared = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    ended: list[int] = []
    for _ in range(_ROUNDS):
        strays = [
            process
            for process in psutil.process_iter()
            if process.pid not in spared and _has_mark(process, mark)
        ]
        if not strays:
            break
        for process in strays:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(strays, _END_S)
        ended += [process.pid for process in strays]
    return ended


def _has_mark(process: psutil.Process, mark: str) -> bool:
    try:
        own = process.uids().effective == os.geteuid()
        return own and process.environ().get(MARK) == mark
    except (psutil.Error, OSError):
        return False  # it has ended
