"""Warm start in container images: the sandbox of a job's next attempt here, made in advance.

1. Some seconds after a gang's ranks have started in an image, a second sandbox with that image is
   begun (`tick`). Once it is ready, one standby for each of these ranks is started in it. They
   import torch and wait.
2. The next attempt of the job on this node gets this sandbox, and its own folders are shown in it
   (`take`). Its ranks are these standbys (`rank`); those that are missing start cold.
3. A spare sandbox is removed when its job has ended, or has left this node for `_UNUSED_S`.

All that runs in it is confined as a rank of that job, and serves no other. All methods are called
by the agent's own thread, except `take`.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import psutil
import structlog

from gangline_worker.agent.decide.keys import GangKey
from gangline_worker.agent.isolation.cold_start import Launch
from gangline_worker.agent.isolation.files import Owner
from gangline_worker.agent.isolation.groups import GangLimits
from gangline_worker.agent.isolation.isolator import Isolator
from gangline_worker.agent.isolation.sandbox import ImageRoot, Sandbox, finish_sandbox
from gangline_worker.agent.warm.image_standby import ImageStandby, image_arguments
from gangline_worker.agent.warm.process import WarmRank
from gangline_worker.agent.warm.rank import WarmRequest

from .launcher import Launcher

log = structlog.get_logger(__name__)

_SETTLING_S = 3.0
"""After the start of a gang's ranks: their own start comes first."""
_UNUSED_S = 60.0
_STANDBY_BYTES = 1 << 30
"""About what a standby with torch takes; as much must be free for each, and as much again."""
_UNFIT = 1000


@dataclass(frozen=True, slots=True)
class SandboxPlan:
    """All that two sandboxes with the same image must have in common."""

    image: ImageRoot
    limits: GangLimits
    owner: Owner | None
    rank_bytes: int


@dataclass(slots=True)
class _Wanted:
    """A gang that has started; `launches` are those of its ranks that can start warm."""

    plan: SandboxPlan
    launches: list[Launch]
    since_s: float


@dataclass(slots=True)
class _Spare:
    """`sandbox`: until it is ready."""

    key: GangKey
    plan: SandboxPlan
    launches: list[Launch]
    sandbox: Sandbox | None = None
    standbys: list[ImageStandby] = field(default_factory=list)
    here_s: float = 0.0


class Spares:
    """The spare sandboxes of this node, one for each job; none where `folder` is None.

    `keep` and `release` hold the layers of a gang's image for another key, and no longer.
    """

    def __init__(
        self,
        launcher: Launcher,
        isolator: Isolator,
        folder: Path | None,
        keep: Callable[[GangKey, GangKey], None],
        release: Callable[[GangKey], None],
    ) -> None:
        self._launcher = launcher
        self._isolator = isolator
        self._standby = None if folder is None else partial(ImageStandby, socket_folder=folder)
        self._keep, self._release = keep, release
        self._wanted: dict[GangKey, _Wanted] = {}
        self._spares: dict[str, _Spare] = {}
        self._taken: dict[GangKey, list[ImageStandby]] = {}
        self._unfit: dict[tuple[str, ...], None] = {}
        self._lock = threading.Lock()

    def begin(self, launch: Launch, plan: SandboxPlan) -> None:
        """One of a gang's ranks was started in its image."""
        if self._standby is None or image_arguments(launch.command) is None:
            return
        wanted = self._wanted.setdefault(
            launch.rank.gang, _Wanted(plan, [], time.monotonic() + _SETTLING_S)
        )
        wanted.launches.append(launch)

    def tick(self, live: Collection[GangKey]) -> None:
        """Make one that is due, start one standby, and end those that are of no use."""
        now_s = time.monotonic()
        jobs = {gang.job_id for gang in live}
        for gang, wanted in list(self._wanted.items()):
            if now_s >= wanted.since_s:
                del self._wanted[gang]
                self._make(gang, wanted)
                break
        with self._lock:
            spares = list(self._spares.items())
        for job_id, spare in spares:
            spare.here_s = now_s if job_id in jobs else spare.here_s
            if self._is_useless(spare, now_s):
                self.forget(job_id)
            else:
                self._add_standby(spare)

    def take(self, gang: GangKey, plan: SandboxPlan, show: Sequence[Path]) -> bool:
        """Whether the gang has a spare sandbox now, with these paths. Any thread may ask."""
        with self._lock:
            spare = self._spares.get(gang.job_id)
            if spare is None or spare.plan != plan:
                return False
            if not any(standby.is_ready() for standby in spare.standbys):
                return False
            del self._spares[gang.job_id]
            self._taken[gang] = spare.standbys
        try:
            self._isolator.move(spare.key, gang, show, self._helper)
        except OSError as error:
            log.warning("spare.of_no_use", job=gang.job_id, error=str(error))
            with self._lock:
                self._taken.pop(gang, None)  # the gang may have ended just now
                self._spares[gang.job_id] = spare
                spare.launches = []  # `tick` ends it
            return False
        self._release(spare.key)
        log.info("spare.taken", job=gang.job_id, attempt=gang.attempt)
        return True

    def rank(self, launch: Launch) -> WarmRank | None:
        """A rank that waits at its gate; None when it has to be started cold."""
        arguments = image_arguments(launch.command)
        standbys = self._taken.get(launch.rank.gang, [])
        ready = next((standby for standby in standbys if standby.is_ready()), None)
        if arguments is None or ready is None:
            return None
        standbys.remove(ready)
        orders, folder = launch.confinement.orders, launch.workdir or str(launch.folder)
        found = ready.rank(WarmRequest(arguments, launch.environment, folder, orders))
        if found is None:
            self._end([ready])
        return found

    def leave(self, gang: GangKey) -> None:
        """The gang ends here."""
        self._wanted.pop(gang, None)
        self._end(self._taken.pop(gang, []))

    def forget(self, job_id: str) -> None:
        """End the job's spare sandbox."""
        with self._lock:
            spare = self._spares.pop(job_id, None)
        if spare is None:
            return
        self._end(spare.standbys)
        if (first := self._isolator.leave(spare.key)) is not None:
            self._launcher.disown(first)
        self._release(spare.key)

    def stop(self) -> None:
        """End all."""
        self._wanted.clear()
        for job_id in list(self._spares):
            self.forget(job_id)
        for gang in list(self._taken):
            self.leave(gang)

    def _make(self, gang: GangKey, wanted: _Wanted) -> None:
        with self._lock:
            old = self._spares.get(gang.job_id)
        if old is not None and old.plan == wanted.plan:
            return
        self.forget(gang.job_id)
        free = psutil.virtual_memory().available
        if wanted.plan.image.layers in self._unfit or free < 2 * _STANDBY_BYTES * len(
            wanted.launches
        ):
            return
        spare = _Spare(_spare_of(gang), wanted.plan, wanted.launches)
        self._keep(gang, spare.key)
        try:
            spare.sandbox = self._isolator.begin(
                spare.key, [], wanted.plan.limits, self._launcher.keep, wanted.plan.image
            )
        except OSError as error:
            self._give_up(spare, error)
        spare.here_s = time.monotonic()
        with self._lock:
            self._spares[gang.job_id] = spare

    def _give_up(self, spare: _Spare, error: OSError) -> None:
        log.warning("spare.not_made", job=spare.key.job_id, error=str(error))
        spare.launches = []  # `tick` ends it

    def _is_ready(self, spare: _Spare) -> bool:
        if spare.sandbox is not None and spare.sandbox.has_begun():
            try:
                finish_sandbox(spare.sandbox)
            except OSError as error:
                self._give_up(spare, error)
            spare.sandbox = None
        return spare.sandbox is None

    def _add_standby(self, spare: _Spare) -> None:
        if not self._is_ready(spare):
            return
        with self._lock:  # a gang may take it just now
            started = len(spare.standbys)
            if self._spares.get(spare.key.job_id) is not spare or started >= len(spare.launches):
                return
            confinement = self._isolator.confinement(
                spare.key, spare.plan.owner, spare.plan.rank_bytes
            )
            launch = replace(spare.launches[started], confinement=confinement)
            if self._standby is None or confinement.sandbox is None:
                return
            start = partial(self._standby, launch)
            try:
                spare.standbys.append(self._launcher.keep(start))
            except OSError as error:
                log.warning("spare.no_standby", job=spare.key.job_id, error=str(error))
                spare.launches = spare.launches[:started]

    def _is_useless(self, spare: _Spare, now_s: float) -> bool:
        if not spare.launches:
            return True
        with self._lock:
            for standby in spare.standbys:
                standby.is_ready()
            fit = all(standby.is_fit for standby in spare.standbys)
        if not fit:
            self._unfit[spare.plan.image.layers] = None
            if len(self._unfit) > _UNFIT:
                del self._unfit[next(iter(self._unfit))]
        return not fit or now_s - spare.here_s > _UNUSED_S

    def _helper(self, begin: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        return self._launcher.keep(begin)

    def _end(self, standbys: Sequence[ImageStandby]) -> None:
        for standby in standbys:
            standby.stop()
            self._launcher.disown(standby.pid)


def _spare_of(gang: GangKey) -> GangKey:
    """A key that no attempt has, for what is made while this one runs."""
    return GangKey(gang.job_id, -gang.attempt)
