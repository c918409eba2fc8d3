"""The command lines of podman for containers of gangs.

As root, a gang runs as its team's user. Otherwise podman makes a user namespace, in which the
agent's user is number 0.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from typing import ClassVar

from gangline_schemas.rank_limits import shared_memory_bytes
from gangline_worker.agent.host.cdi import GivenDevices
from gangline_worker.agent.isolation.image_root import accelerators, driver_files

from .engine import Container, Engine, each, resource_limits, tmp_bytes

_END_S = 60.0
_TMP = "/tmp"  # noqa: S108 -- the container's own
_BY_IMAGE = {1, 2, 127}
"""Exit codes of a Python that is too old, or is not there."""


class Podman(Engine):
    """podman on this machine."""

    program: ClassVar[str] = "podman"
    title: ClassVar[str] = "podman"
    least_release: ClassVar[tuple[int, int]] = (4, 0)
    needs: ClassVar[dict[str, str]] = {"podman": "install it, with runc or crun"}

    def command(self, container: Container, program: Sequence[str]) -> list[str]:
        """As `Engine` says."""
        given = container.image.devices
        return [
            *([] if self._is_root else ["podman", "unshare"]),
            *self._root(container),
            *("podman", "run", "--rm", "--replace", "--name", container.name),
            *each("--label", container.labels),
            *("--log-driver", "none", "--http-proxy=false", "--passwd=false"),
            *("--network", "host", "--uts", "host", "--cap-drop", "all"),
            *("--security-opt", "no-new-privileges", "--security-opt", "label=disable"),
            *self._user(container),
            *self._limits(container),
            *("--shm-size", str(shared_memory_bytes(container.limits.memory_bytes))),
            "--tmpfs",
            f"{_TMP}:rw,nosuid,nodev,exec,notmpcopyup,mode=1777,size={tmp_bytes(container)}",
            *each("--device", accelerators(without_gpus=given is not None)),
            *(_drivers() if given is None else _of_cdi(given)),
            *each("--volume", [f"{path}:{path}" for path in container.show]),
            *each("--env", [f"{name}={text}" for name, text in container.environment.items()]),
            *("--rootfs", f"{self._place}/root", *program),
        ]

    def lacks_python(self, code: int, said: str) -> bool:  # noqa: ARG002
        """As `Engine` says."""
        return code in _BY_IMAGE

    def end(self, name: str, process: subprocess.Popen[bytes] | None) -> None:  # noqa: ARG002
        """As `Engine` says."""
        self._remove(name)

    def end_all(self, prefix: str) -> None:
        """As `Engine` says."""
        if shutil.which("podman") is None:
            return
        said = self._ask("ps", "--all", "--quiet", "--filter", f"name=^{prefix}").stdout
        if names := said.decode(errors="replace").split():
            self._remove(*names)

    def _remove(self, *names: str) -> None:
        self._ask("rm", "--force", "--ignore", "--time", "0", *names, timeout_s=_END_S)

    def _user(self, container: Container) -> list[str]:
        if container.owner is None:
            return []
        uid = container.owner.uid
        return ["--user", f"{uid}:{uid}"]

    def _limits(self, container: Container) -> list[str]:
        found = resource_limits(container)
        options = [f"--ulimit={name}={most}:{most}" for name, most in found.items()]
        if self.limits:
            memory_bytes = container.limits.memory_bytes
            options += [f"--memory={memory_bytes}", f"--memory-swap={memory_bytes}"]
            if container.limits.cpus is not None:
                options.append(f"--cpus={container.limits.cpus:g}")
        most = container.processes if self.limits else -1  # podman's own default is 2048
        options.append(f"--pids-limit={most}")
        return options


def _drivers() -> list[str]:
    return each("--volume", [f"{path}:{at}:ro" for at, path in driver_files("/").items()])


def _of_cdi(given: GivenDevices) -> list[str]:
    """The agent reads the files of CDI itself: podman would name the devices otherwise."""
    files = [
        f"{file.source}:{file.target}:{'ro' if file.read_only else 'rw'}" for file in given.files
    ]
    nodes = [f"{source}:{target}" for source, target in given.nodes]
    return [*each("--device", nodes), *each("--volume", files)]
