"""The places where ranks run, each with a launcher: below the agent, in a pod, and by an engine.

A pod is its first process as an ordinary process here, or in own pid and mount namespaces. A
container of podman or Apptainer shows the programs of this machine, in an image without files.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

from gangline_schemas.job_pods import POD_SOCKET
from gangline_worker import pod_host
from gangline_worker.agent.decide.inputs import RankExited
from gangline_worker.agent.decide.keys import GangKey, RankKey
from gangline_worker.agent.isolation.cold_start import Launch
from gangline_worker.agent.isolation.groups import GangLimits
from gangline_worker.agent.isolation.interpreter import interpreter_places
from gangline_worker.agent.isolation.sandbox import ImageRoot
from gangline_worker.agent.runtime.containers import ENGINES, Containers
from gangline_worker.agent.runtime.launcher import Launcher
from gangline_worker.agent.runtime.log_lines import LogBatcher
from gangline_worker.agent.runtime.pod_hosts import PodHosts, PodWaits, kubectl_missing
from gangline_worker.agent.runtime.spares import SandboxPlan
from support.builders.engines import engine
from support.waiting import until

GANG = GangKey("job", 1)
_OF_MACHINE = ("/bin", "/lib", "/lib64", "/usr")
_UNSHARED = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


class RankRuntime:
    """One place, and the ranks that were started there. `lines` and `exits` are by rank."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.lines: dict[int, list[str]] = {}
        self.exits: dict[int, RankExited] = {}
        self._run = uuid.uuid4().hex
        self.unshared = name != "pod"
        self.engine = name if name in ENGINES else None
        self.by_engine = self.engine is not None
        self.pod = "job-1" if self.by_engine else "job"
        self.sockets = folder / "sockets"
        self.sockets.mkdir()
        self.containers: Containers | None = None
        self.hosts = None if name == "agent" else self._hosts()
        self.launcher = Launcher(self._exited, None, self.hosts)
        self.pods: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        if self.containers is not None:
            self.open_container(GANG)
        elif self.hosts is not None:
            self.hosts.expect(GANG, None)
            self.start_pod()
            self.hosts.wait(GANG, [self.hosts.folder("job")])
        return self

    def _hosts(self) -> PodHosts:
        if self.engine is not None:
            place = self.folder / "root"
            place.mkdir(exist_ok=True)
            self.containers = Containers(engine(self.engine, place), self.sockets, 600, 1000)
            return self.containers.hosts
        waits = PodWaits(20, 20)
        return PodHosts(self.sockets, waits, kubectl_missing("node", waits))

    def open_container(self, gang: GangKey, python: str = sys.executable) -> None:
        """Start a container of the engine, in which `python3` is there as on this machine."""
        assert self.containers is not None
        (self.folder / "layer").mkdir(exist_ok=True)
        path = f"{Path(python).parent}:/usr/bin:/bin"
        root = ImageRoot(self.folder, ("layer",))
        plan = SandboxPlan(root, GangLimits(1 << 30), None, 1 << 30)
        of_machine = [Path(name) for name in _OF_MACHINE if Path(name).is_dir()]
        show = [*of_machine, *interpreter_places(), self.folder]

        def keep(start: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
            self.pods.append(self.launcher.keep(start))
            return self.pods[-1]

        self.containers.open(gang, {"PATH": path}, plan, show, keep, self.launcher.disown)

    def __exit__(self, *_: object) -> None:
        for rank in list(self.lines):
            self.launcher.kill(RankKey(GANG, rank))
        until(lambda: set(self.exits) >= set(self.lines))
        if self.hosts is not None:
            self.hosts.stop()
        if self.containers is not None:
            self.containers.close(GANG)
        for pod in self.pods:
            if not self.by_engine:
                pod.kill()
            pod.wait()

    def start_pod(self, job: str = GANG.job_id) -> subprocess.Popen[bytes]:
        assert self.hosts is not None
        path = self.hosts.folder(job) / POD_SOCKET
        host = [sys.executable, "-S", str(pod_host.__file__), "run", str(path), "600"]
        command = [*_UNSHARED, *host] if self.unshared else host
        self.pods.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        return self.pods[-1]

    def host_pid(self) -> int:
        """The first process of the gang's pod."""
        pid = self.pods[0].pid
        if self.by_engine:
            found = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
            return next(filter(self._is_first, found))
        if self.unshared:  # below `unshare`
            pid = int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
        return pid

    def _is_first(self, pid: int) -> bool:
        """Whether it is `pod_host` in a container of this place."""
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            return (
                words[0].endswith(b"python3")
                and words[1:2] == [b"-S"]
                and any(word.startswith(os.fsencode(self.sockets)) for word in words)
            )
        return False

    def restart_agent(self) -> None:
        """All that the agent knows of pods is gone, except of the ranks that it adopts."""
        assert self.hosts is not None
        self.launcher.pause()
        kept = [
            replace(rank, stdout=os.dup(rank.stdout), stderr=os.dup(rank.stderr))
            for rank in self.launcher.kept()
        ]
        for process in self.launcher._ranks.values():
            for pipe in process._streams().values():
                pipe.close()
        self.hosts.stop()
        self.hosts = self._hosts()
        self.launcher = Launcher(self._exited, None, self.hosts)
        self.hosts.expect(GANG, None)
        for rank in kept:
            self.launcher.adopt(rank, self._token(rank.rank.rank), self._logs(rank.rank.rank))

    def start(self, rank: int, command: Sequence[str], **environment: str) -> int:
        found = {
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            "GANGLINE_RANK_TOKEN": self._token(rank),
            **environment,
        }
        in_pod = self.hosts is not None
        launch = Launch(RankKey(GANG, rank), tuple(command), found, self.folder, in_pod=in_pod)
        self.lines[rank] = []
        return self.launcher.spawn(launch, self._logs(rank))

    def end(self, rank: int) -> RankExited:
        until(lambda: rank in self.exits)
        return self.exits[rank]

    def said(self, rank: int, text: str) -> None:
        """Wait until a rank has written this line."""
        until(lambda: text in self.lines[rank], f"{text} is not in {self.lines[rank]}")

    def _token(self, rank: int) -> str:
        return f"{self._run[:28]}{rank:04d}"

    def _logs(self, rank: int) -> LogBatcher:
        lines = self.lines[rank]
        return LogBatcher(
            frozenset(),
            lambda _, batch: lines.extend(line.text for line in batch),
            lambda: time.time_ns() // 1_000_000,
        )

    def _exited(self, exited: RankExited) -> None:
        self.exits[exited.rank.rank] = exited
