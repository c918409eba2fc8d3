"""The places where ranks run, each with a launcher: below the agent, and in a pod.

A pod is its first process as an ordinary process here, or in own pid and mount namespaces.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

from gangline_schemas.job_pods import POD_SOCKET
from gangline_worker import pod_host
from gangline_worker.agent.decide.inputs import RankExited
from gangline_worker.agent.decide.keys import GangKey, RankKey
from gangline_worker.agent.isolation.cold_start import Launch
from gangline_worker.agent.runtime.launcher import Launcher
from gangline_worker.agent.runtime.log_lines import LogBatcher
from gangline_worker.agent.runtime.pod_hosts import PodHosts, PodWaits
from support.harnesses.node import until

GANG = GangKey("job", 1)
_UNSHARED = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


class RankRuntime:
    """One place, and the ranks that were started there. `lines` and `exits` are by rank."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.lines: dict[int, list[str]] = {}
        self.exits: dict[int, RankExited] = {}
        self._run = uuid.uuid4().hex
        self.unshared = name == "pod with namespaces"
        self.sockets = folder / "sockets"
        self.sockets.mkdir()
        self.hosts = PodHosts(self.sockets, PodWaits(20, 20)) if name != "agent" else None
        self.launcher = Launcher(self._exited, None, self.hosts)
        self.pods: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        if self.hosts is not None:
            self.hosts.expect(GANG, None)
            self.start_pod()
            self.hosts.wait(GANG, [self.hosts.folder("job")])
        return self

    def __exit__(self, *_: object) -> None:
        for rank in list(self.lines):
            self.launcher.kill(RankKey(GANG, rank))
        until(lambda: set(self.exits) >= set(self.lines))
        if self.hosts is not None:
            self.hosts.stop()
        for pod in self.pods:
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
        if self.unshared:  # below `unshare`
            pid = int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
        return pid

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
        self.hosts = PodHosts(self.sockets, PodWaits(20, 20))
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
        launch = Launch(RankKey(GANG, rank), tuple(command), found, self.folder)
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
