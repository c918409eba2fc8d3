"""The agent's side of `standby`: keeps as many of them as ranks may be launched at once."""

from __future__ import annotations

import time
from pathlib import Path

import structlog

from .process import Refused, WarmProcess, WarmRank
from .rank import WarmRequest

log = structlog.get_logger(__name__)

_PAUSE_S = 10.0
"""Before those that died are replaced."""
_SETTLING_S = 3.0
"""After a launch, before those that became ranks are replaced: the gang's start comes first."""


class StandbyPool:
    """Up to `size` standbys; a `WarmStart`."""

    def __init__(self, socket_folder: Path, size: int) -> None:
        self._folder = socket_folder
        self._size = size
        self._standbys: list[WarmProcess] = []
        self._spent: list[WarmProcess] = []
        self._fill_after_s = 0.0
        self._unfit: str | None = None

    @property
    def pids(self) -> tuple[int, ...]:
        """Those that run and are no ranks."""
        return tuple(standby.pid for standby in (*self._standbys, *self._spent))

    @property
    def ready(self) -> tuple[int, ...]:
        """Those that can become a rank now."""
        return tuple(standby.pid for standby in self._standbys if standby.is_ready())

    def start(self) -> None:
        """Start as many as are missing; they are ready some seconds later."""
        while len(self._standbys) < self._size:
            self._standbys.append(WarmProcess("standby", self._folder))

    def tick(self) -> None:
        """See which are ready and which have died, and start what is missing."""
        self._spent = [spent for spent in self._spent if spent.status() is None]
        for standby in list(self._standbys):
            if not standby.is_ready() and standby.unfit is not None:
                self._unfit = standby.unfit
            elif (status := standby.status()) is not None:
                log.error("standby.died", pid=standby.pid, status=status)
                self._lose(standby)
        if self._unfit is not None and self._standbys:
            log.error("standby.given_up", why=self._unfit)
            self.stop()
        if self._unfit is None and time.monotonic() >= self._fill_after_s:
            self.start()

    def stop(self) -> None:
        """End all that are no ranks."""
        for standby in (*self._standbys, *self._spent):
            standby.stop()
        self._standbys, self._spent = [], []

    def rank(self, request: WarmRequest, sandbox: int | None) -> WarmRank | None:
        """A rank that waits at its gate; None when it has to be started cold."""
        for standby in [found for found in self._standbys if found.is_ready()]:
            try:
                rank = standby.rank(request, sandbox)
            except Refused as refused:  # as all others would
                log.info("standby.refused", why=str(refused), program=request.arguments[:2])
                return None
            except OSError as error:
                log.warning("standby.lost", pid=standby.pid, error=str(error))
                self._lose(standby)
                continue
            standby.close()
            self._standbys.remove(standby)
            if rank.pid != standby.pid:  # it forked the rank, and ends
                self._spent.append(standby)
            self._fill_after_s = time.monotonic() + _SETTLING_S
            return rank
        return None

    def _lose(self, standby: WarmProcess) -> None:
        standby.stop()
        self._standbys.remove(standby)
        self._fill_after_s = time.monotonic() + _PAUSE_S
