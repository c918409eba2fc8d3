"""The agent's side of `guard`: sends it the end of the lease, until which ranks may run."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
from dataclasses import dataclass

import structlog

from gangline_worker.agent.host.forked import Forked

log = structlog.get_logger(__name__)

SLACK_S = 2.0
_END_S = 5.0


@dataclass(frozen=True, slots=True)
class KeptGuard:
    """A guard that runs, and the descriptor of its standard input."""

    pid: int
    stdin: int


class LeaseGuard:
    """Runs the guard's process. All methods from one thread.

    It holds `lock`, the data folder's, too: no next agent starts before it has cleaned up.
    It kills `slack_s` after the end of the lease: the agent itself comes first, and can say why.
    """

    def __init__(self, socket_folder: str, lock: int, slack_s: float = SLACK_S) -> None:
        self._folder = socket_folder
        self._lock = lock
        self._slack_s = slack_s
        self._process: subprocess.Popen[bytes] | Forked | None = None
        self._stdin = -1
        self._sent_s = 0.0

    @property
    def pid(self) -> int | None:
        """The process, when it runs."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start the process."""
        reading, writing = os.pipe2(os.O_CLOEXEC)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "gangline_worker.agent.runtime.guard", self._folder],
            stdin=reading,
            stdout=subprocess.DEVNULL,
            env={"PATH": os.environ.get("PATH", "")},
            start_new_session=True,
            pass_fds=(self._lock,),
        )
        os.close(reading)
        self._stdin = writing
        self._sent_s = 0.0

    def kept(self) -> KeptGuard:
        """The guard, to be adopted."""
        if self._process is None:
            raise RuntimeError("the guard was not started")
        return KeptGuard(self._process.pid, self._stdin)

    def adopt(self, kept: KeptGuard) -> None:
        """Instead of `start`: take up the guard that this process ran before the agent reloaded."""
        os.set_inheritable(kept.stdin, False)
        self._process, self._stdin = Forked(kept.pid), kept.stdin

    def extend(self, lease_ends_s: float) -> None:
        """The lease ends then (monotonic seconds); starts the process again if it died."""
        if self._process is None or self._process.poll() is not None:
            log.error("guard.died")
            if self._process is not None:
                os.close(self._stdin)
            self.start()
        if lease_ends_s != self._sent_s:
            with contextlib.suppress(OSError):
                os.write(self._stdin, f"{lease_ends_s + self._slack_s!r}\n".encode())
            self._sent_s = lease_ends_s

    def stop(self) -> None:
        """End it: it kills what is left and goes."""
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            ended = os.pidfd_open(process.pid)
            os.close(self._stdin)
            select.select([ended], [], [], _END_S)
            os.close(ended)
            process.poll()
