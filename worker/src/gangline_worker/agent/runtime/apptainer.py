"""The command lines of Apptainer for containers of gangs.

Apptainer runs a root that is mounted already as a "sandbox". As root, a gang runs as its team's
user. Otherwise `unshare` makes a user namespace, in which the agent's user is number 0. Apptainer
has no daemon and no names: a container lives as long as its command and its first process.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from gangline_schemas.rank_limits import shared_memory_bytes
from gangline_worker.agent.host.cdi import GivenDevices, SharedFile
from gangline_worker.agent.host.sweep import CONTAINER, kill_containers
from gangline_worker.agent.isolation.image_root import accelerators, driver_files

from .engine import Container, Engine, each, resource_limits

_NO_SUCH_PROGRAM = "executable file not found"
_BY_IMAGE = {1, 2}
"""Exit codes of a Python that is too old."""
_HOSTS = "/etc/hosts"
_TMP = "/tmp"  # noqa: S108 -- the container's own
_OWN = ("PATH", "HOME", "LANG")
"""Of the agent's variables. Those of Apptainer could mount the node's folders (APPTAINER_BIND)."""


class Apptainer(Engine):
    """Apptainer on this machine."""

    program: ClassVar[str] = "apptainer"
    title: ClassVar[str] = "Apptainer"
    least_release: ClassVar[tuple[int, int]] = (1, 4)
    needs: ClassVar[dict[str, str]] = {
        "apptainer": "install Apptainer",
        "unshare": "install util-linux",
        "prlimit": "install util-linux",
    }

    def command(self, container: Container, program: Sequence[str]) -> list[str]:
        """As `Engine` says."""
        given = container.image.devices
        shm_bytes = shared_memory_bytes(container.limits.memory_bytes)
        limits = resource_limits(container).items()
        devices = accelerators(without_gpus=given is not None)
        return [
            *([] if self._is_root else ["unshare", "--user", "--map-root-user", "--"]),
            *self._root(container, shm_bytes),
            *("prlimit", *(f"--{name}={_number(most)}" for name, most in limits), "--"),
            *("apptainer", "--silent", "exec", "--contain", "--no-home", "--cleanenv"),
            *("--no-eval", "--no-mount", "bind-paths", "--pid", "--no-init", "--ipc", "--no-privs"),
            *self._user(container),
            *self._limits(container),
            *each("--bind", [f"{self._place}/shm:/dev/shm", f"{self._place}/tmp:{_TMP}"]),  # noqa: S108
            *each("--bind", [*devices, *_of_network()]),
            *each("--bind", _drivers() if given is None else _of_cdi(given)),
            *each("--bind", [f"{path}:{path}" for path in container.show]),
            *(f"{self._place}/root", *program),
        ]

    def variables(self, container: Container) -> dict[str, str]:
        """As `Engine` says: the container's reach it by these names, not by its command line."""
        own = {name: os.environ[name] for name in _OWN if name in os.environ}
        inside = {**container.environment, CONTAINER: container.name}
        given = {f"APPTAINERENV_{name}": text for name, text in inside.items()}
        return {**own, CONTAINER: container.name, **given}

    def lacks_python(self, code: int, said: str) -> bool:
        """As `Engine` says."""
        return code in _BY_IMAGE or _NO_SUCH_PROGRAM in said

    def end(self, name: str, process: subprocess.Popen[bytes] | None) -> None:
        """As `Engine` says: the kernel ends all that is in it with its first process."""
        if process is not None:
            process.kill()
        kill_containers(f"{name}\0")

    def end_all(self, prefix: str) -> None:
        """As `Engine` says."""
        kill_containers(prefix)

    def _user(self, container: Container) -> list[str]:
        if container.owner is None:
            return []
        uid = container.owner.uid
        return each("--security", [f"uid:{uid}", f"gid:{uid}"])

    def _limits(self, container: Container) -> list[str]:
        if not self.limits:
            return []
        memory_bytes = container.limits.memory_bytes
        options = [f"--memory={memory_bytes}", f"--memory-swap={memory_bytes}"]
        if container.limits.cpus is not None:
            options.append(f"--cpus={container.limits.cpus:g}")
        return [*options, f"--pids-limit={container.processes}"]


def _number(most: int) -> str:
    return "unlimited:unlimited" if most < 0 else f"{most}:{most}"


def _of_network() -> list[str]:
    """Apptainer itself shows /etc/resolv.conf."""
    return [f"{_HOSTS}:{_HOSTS}:ro"] if Path(_HOSTS).is_file() else []


def _drivers() -> list[str]:
    """`--nv` would show other paths than those that ranks are given in other containers."""
    return [_bind(SharedFile(path, at)) for at, path in driver_files("/").items()]


def _of_cdi(given: GivenDevices) -> list[str]:
    for source, target in given.nodes:
        if source != target:
            raise OSError(f"Apptainer cannot show {source} as {target}: devices keep their names")
    return [*(source for source, _ in given.nodes), *map(_bind, given.files)]


def _bind(file: SharedFile) -> str:
    return f"{file.source}:{file.target}:{'ro' if file.read_only else 'rw'}"
