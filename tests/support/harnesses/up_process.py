"""`gangline up` as its own process, as a user runs it: it can be killed and started again."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from gangline.local.client import Client, read_client
from support.fixtures.platform import TEAMS
from support.waiting import DEADLINE_S, wait_until


def runs(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class UpProcess:
    """One data directory, and the `gangline up` that serves it now: 2 nodes x 2 slots.

    `more`: further arguments of `gangline up`.
    """

    def __init__(self, data_dir: Path, *more: str) -> None:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.data_dir, self._more = data_dir, more
        self.teams = data_dir / "teams.yaml"
        self.teams.write_text(TEAMS, encoding="utf-8")
        self._output = data_dir.parent / f"{data_dir.name}-up.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def command(self) -> list[str]:
        """What a user types."""
        program = "from gangline.main import main; main()"
        up = ["up", "--data-dir", str(self.data_dir), "--teams", str(self.teams)]
        return [sys.executable, "-c", program, *up, *self._more]

    @property
    def client(self) -> Client:
        """How to reach it."""
        found = read_client(self.data_dir)
        assert found is not None
        return found

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it and return once it says that it is up."""
        with self._output.open("wb") as output:
            self._process = process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        wait_until("gangline up", lambda: process.poll() is not None or "up after" in self.output())
        assert process.poll() is None, self.output()

    def output(self) -> str:
        """What it printed so far."""
        return self._output.read_text(encoding="utf-8", errors="replace")

    def pid(self, name: str) -> int:
        """The process id of one of its processes; waits while that is being restarted.

        It is the one that writes the log of that name.
        """
        log = (self.data_dir / "logs" / f"{name}.log").resolve()

        def found() -> int | None:
            for child in self._children(recursive=False):
                with contextlib.suppress(OSError):  # it has just ended
                    if Path(f"/proc/{child.pid}/fd/1").readlink() == log:
                        return child.pid
            return None

        return int(wait_until(f"{name} runs", found))

    def pids(self) -> list[int]:
        """All its processes, and theirs."""
        return [child.pid for child in self._children(recursive=True)]

    def _children(self, *, recursive: bool) -> list[psutil.Process]:
        assert self._process is not None
        return psutil.Process(self._process.pid).children(recursive=recursive)

    def kill(self, name: str) -> None:
        """SIGKILL one of its processes and wait until it is back and ready."""
        before = self.pid(name)
        os.kill(before, signal.SIGKILL)
        wait_until(f"{name} is back", lambda: self.pid(name) != before and self.is_ready(name))

    def is_ready(self, name: str) -> bool:
        """Whether the process tells its health address as this life's own."""
        path = self.data_dir / "run" / "health" / f"{name}.json"
        return path.exists() and json.loads(path.read_text())["pid"] == self.pid(name)

    def log(self, name: str) -> str:
        """The log of one of its processes."""
        path = self.data_dir / "logs" / f"{name}.log"
        return path.read_text(encoding="utf-8", errors="replace")

    def kill_supervisor(self) -> None:
        """SIGKILL `gangline up` itself."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(DEADLINE_S)

    def stop(self) -> None:
        """Ctrl-C."""
        if self._process is not None and self.running:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(DEADLINE_S)
