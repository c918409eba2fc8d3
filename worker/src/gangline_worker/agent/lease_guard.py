"""The agent's side of `guard`: tells it how long the ranks may run without a word."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

import structlog

log = structlog.get_logger(__name__)

_SLACK_S = 2.0  # the agent itself comes first, and can say why


class LeaseGuard:
    """Runs the guard's process. All methods from one thread.

    It holds `lock`, the data folder's, too: no next agent starts before it has cleaned up.
    """

    def __init__(self, socket_folder: str, lock: int) -> None:
        self._folder = socket_folder
        self._lock = lock
        self._process: subprocess.Popen[bytes] | None = None
        self._told_s = 0.0

    @property
    def pid(self) -> int | None:
        """The process, when it runs."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start the process."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "gangline_worker.agent.guard", self._folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env={"PATH": os.environ.get("PATH", "")},
            bufsize=0,
            start_new_session=True,
            pass_fds=(self._lock,),
        )
        self._told_s = 0.0

    def extend(self, lease_ends_s: float) -> None:
        """The lease ends then (monotonic seconds); starts the process again if it died."""
        process = self._process
        if process is None or process.poll() is not None:
            log.error("guard.died")
            self.start()
            process = self._process
        if lease_ends_s != self._told_s and process is not None and process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.write(f"{lease_ends_s + _SLACK_S!r}\n".encode())
            self._told_s = lease_ends_s

    def stop(self) -> None:
        """End it: it kills what is left and goes."""
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5.0)
