"""Keeps the ranks of one team from those of another on this node.

At its start the agent tries the levels, strongest first, by really running a process at each, and
takes the first at which that works. From then on each gang gets what its node's level has:

- process: ranks can gain no privileges by what they execute, and leave no core dumps;
- user: one user for each team, which owns what the gang needs and can read nothing of others;
- namespaces: one sandbox for each gang (`sandbox_init`), which shows no other processes;
- limits: one control group for each gang, with limits for all that it does together.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from gangline_schemas.isolation import Isolation
from gangline_schemas.rank_limits import shared_memory_bytes
from gangline_worker.agent.decide.keys import GangKey, RankKey
from gangline_worker.agent.host.forked import Forked

from .cold_start import Launch, start_cold
from .files import Owner, acting_as, give
from .groups import GangLimits, Groups, delegated_group
from .interpreter import closed_above, interpreter_places, places_of
from .metadata import block_metadata
from .owners import Owners
from .sandbox import (
    Confinement,
    ImageRoot,
    Mounts,
    Sandbox,
    StartHelper,
    attach,
    begin_sandbox,
    finish_sandbox,
)
from .sandbox_init import SHARED

log = structlog.get_logger(__name__)

_TRIAL_S = 10.0
_TRIAL_BYTES = 128 << 20
_LEAST_BYTES = 64 << 20
_TRIAL = GangKey("trial", 0)
_WRITES = "import gangline_worker, pathlib; pathlib.Path('done').touch()"
_TAKES_TOO_MUCH = f"bytearray({2 * _TRIAL_BYTES})"

Start = Callable[[Callable[[], Sandbox]], Sandbox]
"""Calls the given function, so that what it starts is no orphan and lives as long as the agent."""


class IsolationMissing(Exception):
    """The machine lacks what was asked for; the message says what, and the way out."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Users for teams (the first one is for trials); processes and threads of each team here."""

    uids: range
    processes: int


@dataclass(frozen=True, slots=True)
class KeptSandbox:
    """The first process of a gang's sandbox and its group's file, where it has them."""

    gang: GangKey
    pid: int | None
    group: Path | None


@dataclass(frozen=True, slots=True)
class KeptIsolation:
    """The level that was settled on, and what gangs have of it."""

    level: Isolation
    sandboxes: tuple[KeptSandbox, ...]
    no_images: str | None = "the agent started with a release that ran none"

    @property
    def pids(self) -> frozenset[int]:
        """The first processes of all sandboxes."""
        return frozenset(sandbox.pid for sandbox in self.sandboxes if sandbox.pid is not None)


class Isolator:
    """Gives each gang what the node's level has. May be used by many threads.

    `data` and `sockets` are the agent's folders, in which ranks have things of theirs; `hide`:
    what else no rank may see.
    """

    def __init__(self, data: Path, sockets: Path, hide: Sequence[Path], bounds: Bounds) -> None:
        self.level = Isolation.NONE
        self.lacks: dict[Isolation, str] = {}
        self._data = data
        self._passed = (data, sockets)
        self._hide = tuple(Path(os.path.realpath(path)) for path in (data, sockets, *hide))
        self._bounds = bounds
        self._owners = Owners(data / "users.json", bounds.uids[1:])
        self._sandboxes: dict[GangKey, Sandbox] = {}
        self._groups: Groups | None = None
        self._group_files: dict[GangKey, Path] = {}
        self._no_images: str | None = "it was not tried whether the root of an image can be made"
        self._lock = threading.Lock()

    def owner(self, team: str) -> Owner | None:
        """The user of a team; None where all ranks run as the agent's."""
        return self._owners.of(team) if self._has(Isolation.USER) else None

    @property
    def trial_owner(self) -> Owner | None:
        """The user of trials, which is none of a team; None where all ranks run as the agent's."""
        return Owner(self._bounds.uids[0]) if self._has(Isolation.USER) else None

    @property
    def no_images(self) -> str | None:
        """Why gangs cannot run in images here; None: they can."""
        if not self._has(Isolation.NAMESPACES):
            return (
                f"its agent isolates by {self.level.value}; images need namespaces, for which the "
                "agent is root with CAP_SYS_ADMIN (GANGLINE_ISOLATION)"
            )
        return self._no_images

    def enter(
        self,
        gang: GangKey,
        show: Sequence[Path],
        limits: GangLimits,
        start: Start,
        image: ImageRoot | None = None,
    ) -> None:
        """Make the gang's sandbox and group, as far as the level has them: `begin`, and wait.

        Raises OSError.
        """
        if (sandbox := self.begin(gang, show, limits, start, image)) is not None:
            finish_sandbox(sandbox)

    def begin(
        self,
        gang: GangKey,
        show: Sequence[Path],
        limits: GangLimits,
        start: Start,
        image: ImageRoot | None = None,
    ) -> Sandbox | None:
        """Start to make them; the sandbox, for `finish_sandbox`, where the level has any.

        `show` is what the sandbox has of what it hides; with `image` all that it has of the node.
        Raises OSError.
        """
        with self._lock:
            if self._has(Isolation.LIMITS) and self._groups is not None:
                file = self._groups.make(gang, limits, self._bounds.processes)
                self._group_files[gang] = file
        if not self._has(Isolation.NAMESPACES):
            return None
        hide, shown = ((), tuple(show)) if image is not None else self._mounts(show)
        mounts = Mounts(
            hide=hide,
            show=shown,
            shm_bytes=shared_memory_bytes(limits.memory_bytes),
            tmp_bytes=max(_LEAST_BYTES, limits.memory_bytes // 4),
            image=image,
        )

        def first_process() -> Sandbox:
            sandbox = begin_sandbox(mounts)
            with self._lock:
                self._sandboxes[gang] = sandbox
            return sandbox

        return start(first_process)

    def move(self, spare: GangKey, gang: GangKey, show: Sequence[Path], start: StartHelper) -> None:
        """Give a gang the sandbox with an image, and the group, that were made under another key.

        Raises OSError: then it is the other one's still, and of no use.
        """
        with self._lock:
            sandbox = self._sandboxes[spare]
        attach(sandbox, show, start)
        with self._lock:
            self._sandboxes[gang] = self._sandboxes.pop(spare)
            if spare in self._group_files:
                self._group_files[gang] = self._group_files.pop(spare)

    def _mounts(self, show: Sequence[Path]) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
        """The paths that a sandbox without an image hides, and those of them that it shows."""
        places = interpreter_places()
        hide = (*self._hide, *closed_above(places))
        emptied = (*hide, *(Path(os.path.realpath(folder)) for folder in SHARED))
        below = [path for path in places if any(map(path.is_relative_to, emptied))]
        return hide, (*below, *show)

    def confinement(self, gang: GangKey, owner: Owner | None, rank_bytes: int) -> Confinement:
        """The rights that one of its ranks gives up before its program begins."""
        orders = []
        with self._lock:
            sandbox, group = self._sandboxes.get(gang), self._group_files.get(gang)
        if group is not None:
            orders.append(f"group {group}")
        if owner is not None:
            orders += [
                f"limit NPROC {self._bounds.processes}",
                f"limit DATA {rank_bytes}",
                f"user {owner.uid}",
            ]
        if self._has(Isolation.PROCESS):
            orders = ["limit CORE 0", *orders, "lock"]
        return Confinement(tuple(orders), sandbox.handle if sandbox is not None else None)

    def group(self, gang: GangKey) -> Path | None:
        """The folder of the gang's control group, where it has one."""
        with self._lock:
            file = self._group_files.get(gang)
        return None if file is None else file.parent

    def leave(self, gang: GangKey) -> int | None:
        """End all that is in the gang's sandbox; the pid of its first process, to be collected."""
        with self._lock:
            group = self._group_files.pop(gang, None)
            if group is not None and self._groups is not None:
                self._groups.remove(group.parent)
            sandbox = self._sandboxes.pop(gang, None)
        if sandbox is None:
            return None
        sandbox.close()
        return sandbox.pid

    def kept(self) -> KeptIsolation:
        """All sandboxes and groups, to be adopted."""
        with self._lock:
            gangs = sorted({*self._sandboxes, *self._group_files})
            pids = {gang: sandbox.pid for gang, sandbox in self._sandboxes.items()}
            found = [
                KeptSandbox(gang, pids.get(gang), self._group_files.get(gang)) for gang in gangs
            ]
            return KeptIsolation(self.level, tuple(found), self._no_images)

    def adopt(self, kept: KeptIsolation) -> None:
        """Instead of `settle`: continue with what this process had before the agent reloaded.

        Raises OSError.
        """
        self.level, self._no_images = kept.level, kept.no_images
        if self._has(Isolation.LIMITS):
            self._groups = Groups(delegated_group())
        for item in kept.sandboxes:
            if item.pid is not None:
                self._sandboxes[item.gang] = Sandbox(Forked(item.pid))
            if item.group is not None:
                self._group_files[item.gang] = item.group

    def settle(self, wanted: Isolation | None) -> None:
        """Find the level: the one that is wanted, or the strongest that works here.

        Raises IsolationMissing when the wanted one does not.
        """
        self.find(wanted)
        self._block_metadata()

    def find(self, wanted: Isolation | None) -> None:
        """The same, and nothing outside the agent's folders is changed.

        `lacks` then says of each level that was tried and does not work what it lacks.
        """
        for level in sorted(Isolation, key=lambda item: -item.strength):
            if wanted is not None and level is not wanted:
                continue
            self.level = level
            lacking = self._try()
            if lacking is None:
                log.info("agent.isolation", level=level.value)
                self._try_image()
                return
            self.lacks[level] = lacking
            log.info("agent.isolation_lacks", level=level.value, reason=lacking)
        self.level = Isolation.NONE
        if wanted is not None:
            raise IsolationMissing(
                f"isolation: this machine cannot give {wanted.value}: {lacking}; "
                "set GANGLINE_ISOLATION=auto to take the strongest level that it has"
            )

    def _has(self, level: Isolation) -> bool:
        return self.level.strength >= level.strength

    def _block_metadata(self) -> None:
        if self._has(Isolation.USER):
            try:
                block_metadata(self._bounds.uids)
            except OSError as error:
                log.warning("agent.metadata_service_is_open", reason=str(error))

    def _try_image(self) -> None:
        """Find out whether a sandbox can have an image for its root."""
        if not self._has(Isolation.NAMESPACES):
            return
        place = self._data / "trial"
        shutil.rmtree(place, ignore_errors=True)
        try:
            (place / "layer").mkdir(mode=0o755, parents=True)
            root = ImageRoot(place, ("layer",))
            self.enter(_TRIAL, [], GangLimits(_TRIAL_BYTES), lambda begin: begin(), root)
        except OSError as error:
            self._no_images = f"its kernel refused the root of an image: {error}"
            log.info("agent.no_images", reason=self._no_images)
        else:
            self._no_images = None
        finally:
            self.leave(_TRIAL)
            shutil.rmtree(place, ignore_errors=True)

    def _try(self) -> str | None:
        """The reason why the level cannot be had; None when a process ran at it."""
        if self._has(Isolation.USER) and os.geteuid() != 0:
            return "the agent is not root"
        place = self._data / "trial"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(mode=0o700)
        try:
            lacking = self._run_trials(place)
        except OSError as error:
            lacking = str(error)
        finally:
            self.leave(_TRIAL)
            shutil.rmtree(place, ignore_errors=True)
        return lacking and lacking + self._in_the_way(place)

    def _run_trials(self, place: Path) -> str | None:
        """The same, tried in this folder. Raises OSError."""
        self._let_through()
        if self._has(Isolation.LIMITS) and self._groups is None:
            self._groups = Groups(delegated_group())
        owner = self.trial_owner
        give(place, owner)
        with acting_as(owner):
            (place / "by-the-agent").touch()
        self.enter(_TRIAL, [place], GangLimits(_TRIAL_BYTES), lambda begin: begin())
        confinement = self.confinement(_TRIAL, owner, 1 << 30)
        lacking = _run(place, confinement, _WRITES)
        if lacking is not None or not self._has(Isolation.LIMITS):
            return lacking
        if _run(place, confinement, _TAKES_TOO_MUCH) is None:
            return "a process took more memory than its control group may"
        return None

    def _in_the_way(self, place: Path) -> str:
        """More of what is missing: the folders that keep users from what they need, if any do."""
        if not self._has(Isolation.USER):
            return ""
        needed = [place]
        if not self._has(Isolation.NAMESPACES):  # a sandbox shows what it needs of closed folders
            needed += [Path(sys.executable), Path(os.__file__), Path(__file__)]
        try:
            closed = closed_above(places_of(needed))
        except OSError as error:
            return f"; {error}"
        return f"; other users may not pass through {', '.join(map(str, closed))}" if closed else ""

    def _let_through(self) -> None:
        """Let users pass to what is theirs below the agent's folders."""
        for path in self._passed:
            path.chmod(0o711 if self._has(Isolation.USER) else 0o700)


def _run(place: Path, confinement: Confinement, program: str) -> str | None:
    """Run a program with this interpreter there; what it complained of."""
    command = (sys.executable, "-c", program)
    launch = Launch(RankKey(_TRIAL, 0), command, {}, place, confinement)
    with start_cold(launch) as process:
        try:
            _, output = process.communicate(timeout=_TRIAL_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return "a process took too long"
    if process.returncode == 0:
        return None
    lines = output.decode(errors="replace").strip().splitlines()
    last = lines[-1] if lines else f"code {process.returncode}"
    return f"a process ended with {last} (may other users read {place} and {sys.base_prefix}?)"
