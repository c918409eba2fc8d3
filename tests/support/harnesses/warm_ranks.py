"""Ranks that start warm beside ranks that start cold, without an agent."""

from __future__ import annotations

import json
import sys
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent
from typing import Any

from gangline_worker.agent.decide.inputs import RankExited
from gangline_worker.agent.decide.keys import GangKey, RankKey
from gangline_worker.agent.isolation.cold_start import Launch
from gangline_worker.agent.isolation.sandbox import UNCONFINED, Confinement
from gangline_worker.agent.runtime.launcher import Launcher
from gangline_worker.agent.runtime.log_lines import LogBatcher
from gangline_worker.agent.warm.fresh import TOKEN_CHARS
from gangline_worker.agent.warm.process import WarmStart
from support.waiting import until

PROBE = """
    import atexit, json, os, resource, signal, sys, threading, uuid
    atexit.register(lambda: print("at exit", flush=True))
    import random
    hidden = {"GANGLINE_RANK_TOKEN", "LC_CTYPE"}
    print(json.dumps({
        "argv": sys.argv,
        "path": sys.path,
        "name": __name__,
        "file": __file__,
        "cwd": os.getcwd(),
        "environment": {k: v for k, v in os.environ.items() if k not in hidden},
        "session": os.getsid(0) == os.getpid(),
        "parent": os.getppid(),
        "umask": os.umask(0),
        "signals": [str(signal.getsignal(n)) for n in range(1, 20) if n not in (9, 19)],
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "limits": resource.getrlimit(resource.RLIMIT_NOFILE),
        "threads": threading.active_count(),
        "files": sorted(int(n) for n in os.listdir("/proc/self/fd") if int(n) < 3),
        "oom": open("/proc/self/oom_score_adj").read(),
        "buffered": sys.stdout.write_through,
        "warm": "torch" in sys.modules,
        "optimize": sys.flags.optimize,
    }, sort_keys=True))
    print("to stderr", file=sys.stderr)
"""


_RUN = uuid.uuid4().hex


def token_of(rank: int) -> str:
    """Of this rank alone: all that has it is killed when the rank ends."""
    return f"{_RUN[: TOKEN_CHARS - 4]}{rank:04d}"


@dataclass
class Ranks:
    """Ranks by number, each started warm by `start_of` or cold, and what they wrote."""

    folder: Path
    start_of: WarmStart
    lines: dict[int, list[str]] = field(default_factory=dict)
    exits: dict[int, RankExited] = field(default_factory=dict)
    _ended: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.warm = Launcher(self._exited, self.start_of)
        self.cold = Launcher(self._exited)

    def start(
        self,
        rank: int,
        command: list[str],
        *,
        warm: bool = True,
        confinement: Confinement = UNCONFINED,
        **environment: str,
    ) -> int:
        lines = self.lines.setdefault(rank, [])
        logs = LogBatcher(
            frozenset(),
            lambda _, batch: lines.extend(line.text for line in batch),
            lambda: time.time_ns() // 1_000_000,
        )
        found = {
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            "HOME": str(self.folder),
            "LANG": "C.UTF-8",
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",
            "GANGLINE_AGENT_SOCKET": str(self.folder / "socket"),
            "GANGLINE_RANK_TOKEN": token_of(rank),
            **environment,
        }
        key = RankKey(GangKey("job", 1), rank)
        launch = Launch(key, tuple(command), found, self.folder, confinement)
        return (self.warm if warm else self.cold).spawn(launch, logs)

    def end(self, rank: int) -> RankExited:
        until(lambda: rank in self.exits)
        return self.exits[rank]

    def _exited(self, exited: RankExited) -> None:
        self.exits[exited.rank.rank] = exited

    def probed(self, rank: int) -> dict[str, Any]:
        """What `PROBE` reported of a rank, once it has ended."""
        assert (self.end(rank).code, self.end(rank).signal) == (0, None), self.lines[rank]
        assert {"to stderr", "at exit"} < set(self.lines[rank])
        found: dict[str, Any] = json.loads(
            next(line for line in self.lines[rank] if line.startswith("{"))
        )
        return found


def write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(dedent(text))


def program(pid: int) -> bytes:
    """What the kernel shows as a process's command."""
    return Path(f"/proc/{pid}/cmdline").read_bytes()
