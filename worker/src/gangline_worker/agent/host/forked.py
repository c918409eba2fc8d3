"""A child of the agent that the agent did not start itself."""

from __future__ import annotations

import os
import signal


class Forked:
    """A child of this process that another one forked; as `subprocess.Popen`, as far as it goes."""

    def __init__(self, pid: int) -> None:
        if pid < 1:  # as the number of a group it would be the agent's own
            raise ValueError(f"{pid} is no process")
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its status, None while it runs."""
        return self._collect(os.WNOHANG)

    def wait(self) -> int:
        """Collect its status: its exit code, or the negative number of a signal."""
        status = self._collect(0)
        if status is None:
            raise RuntimeError("waitpid returned before the process ended")
        return status

    def kill(self) -> None:
        """SIGKILL, unless it was collected."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _collect(self, how: int) -> int | None:
        if self.returncode is None:
            found, status = os.waitpid(self.pid, how)
            if found == self.pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode
