"""The command lines of podman for containers of gangs, and whether it can run them here.

podman stores and fetches nothing: a container's root is the layers that the agent has, mounted by
`isolation.container_root`. As root, a gang runs as its team's user. Otherwise podman makes a user
namespace, in which the agent's user is number 0.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gangline_schemas.rank_limits import shared_memory_bytes
from gangline_worker.agent.host.cdi import GivenDevices
from gangline_worker.agent.isolation import container_root
from gangline_worker.agent.isolation.files import Owner
from gangline_worker.agent.isolation.groups import GangLimits
from gangline_worker.agent.isolation.image_root import accelerators, driver_files
from gangline_worker.agent.isolation.sandbox import ImageRoot

LEAST_RELEASE = (4, 0)
LEAST_TMP_BYTES = 64 << 20
_ASK_S, _TRIAL_S, _END_S = 20.0, 60.0, 60.0
_TRIAL_BYTES = 128 << 20
_TMP = "/tmp"  # noqa: S108 -- the container's own
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


class Podman:
    """podman on this machine. `limits`: whether it can limit memory, CPUs and processes.

    `place`: an empty folder of the agent. Each container mounts its root there, unseen by others.
    """

    def __init__(self, place: Path, *, is_root: bool | None = None, limits: bool = True) -> None:
        self._place = place
        self._is_root = os.geteuid() == 0 if is_root is None else is_root
        self.limits = limits

    def command(self, container: Container, program: Sequence[str]) -> list[str]:
        """The command line that runs a program as the container's first process."""
        tmp_bytes = max(LEAST_TMP_BYTES, container.limits.memory_bytes // 4)
        image, given = container.image, container.image.devices
        root = [
            *(sys.executable, "-I", "-S", str(container_root.__file__), str(self._place)),
            *(str(tmp_bytes), "" if self._is_root else "userxattr,", image.workdir or ""),
            "\n".join(word for link in given.links for word in link) if given is not None else "",
            *(str(image.folder), ":".join(image.layers)),
        ]
        return [
            *([] if self._is_root else ["podman", "unshare"]),
            *root,
            *("podman", "run", "--rm", "--replace", "--name", container.name),
            *_each("--label", container.labels),
            *("--log-driver", "none", "--http-proxy=false", "--passwd=false"),
            *("--network", "host", "--uts", "host", "--cap-drop", "all"),
            *("--security-opt", "no-new-privileges", "--security-opt", "label=disable"),
            *self._user(container),
            *self._limits(container),
            *("--shm-size", str(shared_memory_bytes(container.limits.memory_bytes))),
            *("--tmpfs", f"{_TMP}:rw,nosuid,nodev,exec,notmpcopyup,mode=1777,size={tmp_bytes}"),
            *_each("--device", accelerators(without_gpus=given is not None)),
            *(_drivers() if given is None else _of_cdi(given)),
            *_each("--volume", [f"{path}:{path}" for path in container.show]),
            *_each("--env", [f"{name}={text}" for name, text in container.environment.items()]),
            *("--rootfs", f"{self._place}/root", *program),
        ]

    def _user(self, container: Container) -> list[str]:
        if container.owner is None:
            return []
        uid = container.owner.uid
        return ["--user", f"{uid}:{uid}"]

    def _limits(self, container: Container) -> list[str]:
        found = {name: resource.getrlimit(kind)[1] for name, kind in _OWN_LIMITS.items()}
        pids = int(Path("/proc/sys/kernel/pid_max").read_text("ascii"))
        found["nproc"] = _least(found["nproc"], pids)  # podman itself takes no higher limit
        if container.owner is not None:
            found |= {"nproc": container.processes, "data": container.rank_bytes}
        found["core"] = 0
        options = [f"--ulimit={name}={most}:{most}" for name, most in found.items()]
        if self.limits:
            memory_bytes = container.limits.memory_bytes
            options += [f"--memory={memory_bytes}", f"--memory-swap={memory_bytes}"]
            if container.limits.cpus is not None:
                options.append(f"--cpus={container.limits.cpus:g}")
        most = container.processes if self.limits else -1  # podman's own default is 2048
        options.append(f"--pids-limit={most}")
        return options

    def lacking(self, owner: Owner | None) -> str | None:
        """The reason why no container can run here; None: one ran, as this user."""
        if shutil.which("podman") is None:
            return "there is no program podman; install it, with runc or crun"
        try:
            said = _ask("--version").stdout.decode(errors="replace").strip()
            release = re.search(r"(\d+)\.(\d+)", said)
            if release is None or tuple(map(int, release.groups())) < LEAST_RELEASE:
                least = ".".join(map(str, LEAST_RELEASE))
                return f"{said or 'podman says no release'}: {least} or later is needed"
            self.limits = True
            if self._try(owner) is None:
                return None
            self.limits = False
            return self._try(owner)
        except subprocess.TimeoutExpired:
            return "podman does not answer"
        except OSError as error:
            return f"podman cannot run: {error}"

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
            )
        finally:
            shutil.rmtree(place, ignore_errors=True)
        return None if done.returncode == 0 else last_words(done.stderr) or "podman failed"


def _drivers() -> list[str]:
    return _each("--volume", [f"{path}:{at}:ro" for at, path in driver_files("/").items()])


def _of_cdi(given: GivenDevices) -> list[str]:
    """The agent reads the files of CDI itself: podman would name the devices otherwise."""
    files = [
        f"{file.source}:{file.target}:{'ro' if file.read_only else 'rw'}" for file in given.files
    ]
    nodes = [f"{source}:{target}" for source, target in given.nodes]
    return [*_each("--device", nodes), *_each("--volume", files)]


def end_container(*names: str) -> None:
    """End containers, if they are there. Raises OSError and TimeoutExpired."""
    _ask("rm", "--force", "--ignore", "--time", "0", *names, timeout_s=_END_S)


def end_containers(prefix: str) -> None:
    """The same of all whose names begin so."""
    if shutil.which("podman") is None:
        return
    said = _ask("ps", "--all", "--quiet", "--filter", f"name=^{prefix}").stdout
    if names := said.decode(errors="replace").split():
        end_container(*names)


def _ask(*words: str, timeout_s: float = _ASK_S) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["podman", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=timeout_s,
        check=False,
    )


def last_words(said: bytes) -> str:
    """The last line of what a command complained of, without its prefix."""
    lines = said.decode(errors="replace").strip().splitlines()
    return lines[-1].removeprefix("Error: ").strip() if lines else ""


def _least(*limits: int) -> int:
    return min(limit for limit in limits if limit != resource.RLIM_INFINITY)


def _each(option: str, values: Sequence[str]) -> list[str]:
    return [word for value in values for word in (option, value)]
