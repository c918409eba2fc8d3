"""One supervised process: its operating-system side and where it stands."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from gangline.local import leftovers
from gangline.local.log_file import LogFile
from gangline.local.process_model import LIVE_STATES, ProcessSpec, ProcessState, ProcessStatus

_LAUNCH = Path(__file__).with_name("_launch.py")


class Child:
    """A process of one spec over all its lives. Used by the supervising thread under its lock.

    It leads its own process group, so that Ctrl-C in a terminal reaches only the supervisor, and
    dies with the thread that called `spawn`.
    """

    def __init__(self, spec: ProcessSpec, data_dir: Path, log: LogFile) -> None:
        self.spec = spec
        self.log = log
        self.state = ProcessState.WAITING
        self.ready = False
        self.was_ever_ready = False
        self.restarts = 0
        self.crashes_in_row = 0
        self.started_at = 0.0
        self.due_at = 0.0  # BACKING_OFF: when to start; STOPPING: when to kill
        self.probe_at = 0.0
        self.is_probed = False
        self.exit_code: int | None = None
        self.pidfd = -1
        self._data_dir = data_dir
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        return self._process.pid if self._process else None

    @property
    def is_alive(self) -> bool:
        """Whether it was started and its end was not seen yet."""
        return self.state in LIVE_STATES

    def spawn(self) -> None:
        """Start the process."""
        environment = {
            **os.environ,
            **self.spec.env,
            leftovers.MARK: str(self._data_dir),
        }
        script = [str(_LAUNCH), str(os.getpid()), str(self.spec.niceness)]
        launch = [sys.executable, "-I", "-S", *script]
        log_fd = self.log.open_to_append()
        try:
            self._process = subprocess.Popen(
                [*launch, *self.spec.argv],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log_fd,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
        finally:
            os.close(log_fd)
        self.pidfd = os.pidfd_open(self._process.pid)

    def terminate(self) -> None:
        """Ask the process to end; it looks after its own children."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGTERM)

    def kill(self) -> None:
        """End the process and its group now."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def reap(self) -> int | None:
        """Return the exit code if the process has ended (negative: the signal), else None.

        The rest of its process group is killed first: until the leader is reaped, no other group
        can have its id.
        """
        if self._process is None:
            return None
        ended = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return None
        self.kill()
        code = self._process.wait()
        os.close(self.pidfd)
        self.pidfd = -1
        self._process = None
        return code

    def status(self, now: float, waiting_for: tuple[str, ...]) -> ProcessStatus:
        """Return this process's row as of `now` (monotonic seconds)."""
        return ProcessStatus(
            name=self.spec.name,
            pid=self.pid,
            state=self.state,
            restarts=self.restarts,
            uptime_s=now - self.started_at if self.is_alive else 0.0,
            ready=self.ready,
            exit_code=self.exit_code,
            waiting_for=waiting_for,
        )
