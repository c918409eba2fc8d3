"""Container engines that run the gangs of a node: what they have in common, and a trial of each.

An engine stores and fetches nothing: a container's root is the layers that the agent has, mounted
by `isolation.container_root`.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from gangline_worker.agent.isolation import container_root
from gangline_worker.agent.isolation.files import Owner
from gangline_worker.agent.isolation.groups import GangLimits
from gangline_worker.agent.isolation.sandbox import ImageRoot

LEAST_TMP_BYTES = 64 << 20
_ASK_S, _TRIAL_S = 20.0, 60.0
_TRIAL_BYTES = 128 << 20
_OF_NODE = ("/bin", "/lib", "/lib64", "/usr")
_OWN_LIMITS = {
    "nofile": resource.RLIMIT_NOFILE,
    "nproc": resource.RLIMIT_NPROC,
    "memlock": resource.RLIMIT_MEMLOCK,
}


@dataclass(frozen=True, slots=True)
class Container:
    """A container of a gang. `rank_bytes`: the memory of each rank; `show`: paths of the node.

    `processes`: that it may have.
    """

    name: str
    labels: tuple[str, ...]
    image: ImageRoot
    environment: dict[str, str]
    show: tuple[Path, ...]
    limits: GangLimits
    rank_bytes: int
    processes: int
    owner: Owner | None


class Engine(ABC):
    """An engine on this machine. `limits`: whether it can limit memory, CPUs and processes.

    `place`: an empty folder of the agent. Each container mounts its root there, unseen by others.
    """

    program: ClassVar[str]
    title: ClassVar[str]
    least_release: ClassVar[tuple[int, int]]
    needs: ClassVar[dict[str, str]]
    """The programs that must be there, and how they come there."""

    def __init__(self, place: Path, *, is_root: bool | None = None, limits: bool = True) -> None:
        self._place = place
        self._is_root = os.geteuid() == 0 if is_root is None else is_root
        self.limits = limits

    @abstractmethod
    def command(self, container: Container, program: Sequence[str]) -> list[str]:
        """The command line that runs a program as the container's first process.

        Raises OSError if it cannot give the container all that it must have.
        """

    def variables(self, container: Container) -> dict[str, str] | None:  # noqa: ARG002
        """The environment of that command; None: the agent's own."""
        return None

    @abstractmethod
    def lacks_python(self, code: int, said: str) -> bool:
        """Whether a container that ended so had no Python, or one that is too old."""

    @abstractmethod
    def end(self, name: str, process: subprocess.Popen[bytes] | None) -> None:
        """End a container, if it is there. Raises OSError and TimeoutExpired.

        `process`: its command, unless the agent has reloaded since.
        """

    @abstractmethod
    def end_all(self, prefix: str) -> None:
        """The same of all whose names begin so."""

    def lacking(self, owner: Owner | None) -> str | None:
        """The reason why no container can run here; None: one ran, as this user."""
        for program, way in self.needs.items():
            if shutil.which(program) is None:
                return f"there is no program {program}; {way}"
        try:
            said = self._ask("--version").stdout.decode(errors="replace").strip()
            release = re.search(r"(\d+)\.(\d+)", said)
            if release is None or tuple(map(int, release.groups())) < self.least_release:
                least = ".".join(map(str, self.least_release))
                return f"{said or f'{self.program} says no release'}: {least} or later is needed"
            self.limits = True
            if self._try(owner) is None:
                return None
            self.limits = False
            return self._try(owner)
        except subprocess.TimeoutExpired:
            return f"{self.program} does not answer"
        except OSError as error:
            return f"{self.program} cannot run: {error}"

    def _try(self, owner: Owner | None) -> str | None:
        """The reason why a container with files of the node does not run; None: it ran."""
        place = self._place.with_name("trial")
        shutil.rmtree(place, ignore_errors=True)
        (place / "layer").mkdir(mode=0o755, parents=True)
        try:
            there = [folder for folder in _OF_NODE if Path(folder).is_dir()]
            trial = Container(
                f"gangline-trial-{os.getpid()}",
                (),
                ImageRoot(place, ("layer",)),
                {},
                tuple(map(Path, there)),
                GangLimits(_TRIAL_BYTES),
                1 << 30,
                64,
                owner,
            )
            done = subprocess.run(
                self.command(trial, ["/bin/sh", "-c", "exit 0"]),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_TRIAL_S,
                check=False,
                env=self.variables(trial),
            )
        finally:
            shutil.rmtree(place, ignore_errors=True)
        if done.returncode == 0:
            return None
        return last_words(done.stderr) or f"{self.program} failed"

    def _ask(self, *words: str, timeout_s: float = _ASK_S) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [self.program, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )

    def _root(self, container: Container, shm_bytes: int | None = None) -> list[str]:
        """The words that mount the container's root at `self._place`/root, before the engine's.

        `shm_bytes`: make its /dev/shm and /tmp there too.
        """
        image, given = container.image, container.image.devices
        return [
            *(sys.executable, "-I", "-S", str(container_root.__file__), str(self._place)),
            *(str(tmp_bytes(container)), "" if shm_bytes is None else str(shm_bytes)),
            *("" if self._is_root else "userxattr,", image.workdir or ""),
            "\n".join(word for link in given.links for word in link) if given is not None else "",
            *(str(image.folder), ":".join(image.layers)),
        ]


def tmp_bytes(container: Container) -> int:
    """The most that a container's files in /tmp take, and those that it writes elsewhere."""
    return max(LEAST_TMP_BYTES, container.limits.memory_bytes // 4)


def resource_limits(container: Container) -> dict[str, int]:
    """The limits of each process of a container, by the names of `ulimit` options."""
    found = {name: resource.getrlimit(kind)[1] for name, kind in _OWN_LIMITS.items()}
    pids = int(Path("/proc/sys/kernel/pid_max").read_text("ascii"))
    found["nproc"] = _least(found["nproc"], pids)  # podman itself takes no higher limit
    if container.owner is not None:
        found |= {"nproc": container.processes, "data": container.rank_bytes}
    return found | {"core": 0}


def last_words(said: bytes) -> str:
    """The last line of what a command complained of, without its prefix."""
    lines = said.decode(errors="replace").strip().splitlines()
    return re.sub(r"^(Error|FATAL): *", "", lines[-1]).strip() if lines else ""


def _least(*limits: int) -> int:
    return min(limit for limit in limits if limit != resource.RLIM_INFINITY)


def each(option: str, values: Sequence[str]) -> list[str]:
    """The option before each value."""
    return [word for value in values for word in (option, value)]
