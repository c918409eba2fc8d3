"""An orderly restart in place that was asked for: tried first, then waited for.

1. The program as it is installed now is run beside this one. It must start with these settings and
   understand this state: one that does not must not cost a step of training.
2. Work whose end can be waited for (a preparation, an upload) gets `WAIT_S` to end; what is not
   done then begins again afterwards.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import structlog

from .decide.core import AgentCore
from .handover import FORMAT, sample
from .isolation.rank_exec import tied_command
from .runtime.launcher import Launcher

log = structlog.get_logger(__name__)

TRIAL_OPTION = "--would-take-over"
WAIT_S = 30.0
_TRIAL_S = 60.0


class Renewal:
    """`asked` is set by SIGHUP, and cleared when it is refused. All calls from one thread."""

    def __init__(self, asked: threading.Event, core: AgentCore, launcher: Launcher) -> None:
        self._asked = asked
        self._core = core
        self._launcher = launcher
        self._trial: subprocess.Popen[bytes] | None = None
        self._begun_s = 0.0

    def is_due(self, *, idle: bool) -> bool:
        """Whether to hand over now; ask in each turn. `idle`: nothing would have to begin again."""
        if not self._asked.is_set():
            return False
        if self._trial is None:
            self._begin()
            return False
        waited_s = time.monotonic() - self._begun_s
        status = self._trial.poll()
        if status == 0:
            return idle or waited_s >= WAIT_S
        if status is not None:
            self._refuse(f"the program ended with status {status} when it was tried")
        elif waited_s >= _TRIAL_S:
            self._refuse(f"the program did not start within {_TRIAL_S:.0f} s when it was tried")
        return False

    def _begin(self) -> None:
        command = tied_command(sys.executable, *sys.orig_argv[1:], TRIAL_OPTION, str(FORMAT))
        self._begun_s = time.monotonic()
        try:
            given = sample(self._core.state)
            try:
                self._trial = self._launcher.keep(lambda: subprocess.Popen(command, stdin=given))
            finally:
                os.close(given)
        except OSError as error:
            self._refuse(f"the program cannot be tried: {error.strerror}")

    def _refuse(self, reason: str) -> None:
        log.error("agent.restart_refused", reason=reason)
        trial, self._trial = self._trial, None
        if trial is not None:
            trial.kill()
            trial.wait()
            self._launcher.disown(trial.pid)
        self._asked.clear()
