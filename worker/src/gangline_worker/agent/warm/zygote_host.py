"""The agent's side of `zygote`: keeps the process running, and has processes forked by it."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from pathlib import Path

import structlog

from gangline_worker.agent.host.forked import Forked

from .process import Refused, WarmProcess, WarmRank
from .rank import WarmRequest
from .zygote import NO_GPUS

log = structlog.get_logger(__name__)

_STDERR = 2
_PAUSE_S = 10.0
"""Between two starts of a zygote that does not live."""


class ZygoteHost:
    """Runs the zygote; a `WarmStart`."""

    def __init__(self, socket_folder: Path) -> None:
        self._folder = socket_folder
        self._zygote: WarmProcess | None = None
        self._start_after_s = 0.0

    @property
    def pids(self) -> tuple[int, ...]:
        """The process, when it runs."""
        return (self._zygote.pid,) if self._zygote is not None else ()

    def start(self) -> None:
        """Start the process; it is ready some seconds later."""
        self._zygote = WarmProcess("zygote", self._folder, NO_GPUS)
        self._start_after_s = time.monotonic() + _PAUSE_S

    def tick(self) -> None:
        """See whether it is ready, and start it again when it died."""
        self.is_ready()
        if self._zygote is not None and (status := self._zygote.status()) is not None:
            log.error("zygote.died", status=status)
            self.stop()
        if self._zygote is None and time.monotonic() >= self._start_after_s:
            self.start()

    def stop(self) -> None:
        """End the process; the ranks that it has forked keep running."""
        zygote, self._zygote = self._zygote, None
        if zygote is not None:
            zygote.stop()

    def is_ready(self) -> bool:
        """Whether it can fork."""
        return self._zygote is not None and self._zygote.is_ready()

    @property
    def is_starting(self) -> bool:
        """Whether it will be ready soon, if nothing happens."""
        zygote = self._zygote
        return zygote is not None and not zygote.is_ready() and zygote.status() is None

    def rank(self, request: WarmRequest, sandbox: int | None) -> WarmRank | None:
        """A rank that waits at its gate; None when it has to be started cold."""
        if self._zygote is None or not self._zygote.is_ready():
            return None
        try:
            return self._zygote.rank(request, sandbox)
        except (Refused, OSError) as error:
            self._failed(error, request)
            return None

    def fork(self, module: str, channel: socket.socket) -> Forked | None:
        """A process of the agent's own, whose standard output is `channel`; None: start it cold."""
        environment = {"PATH": os.environ.get("PATH", ""), "HOME": os.environ.get("HOME", "/")}
        request = WarmRequest(("-m", module), environment, str(self._folder))
        if self._zygote is None or not self._zygote.is_ready():
            return None
        try:
            pid, gate = self._zygote.request(request, channel.fileno(), _STDERR)
        except (Refused, OSError) as error:
            self._failed(error, request)
            return None
        with contextlib.suppress(BrokenPipeError):  # it died at once: that is seen by its status
            os.write(gate, b"1")
        os.close(gate)
        return Forked(pid)

    def _failed(self, error: Refused | OSError, request: WarmRequest) -> None:
        if isinstance(error, Refused):
            log.info("zygote.refused", why=str(error), program=request.arguments[:2])
        else:  # `tick` starts another
            log.warning("zygote.lost", error=str(error))
            self.stop()
