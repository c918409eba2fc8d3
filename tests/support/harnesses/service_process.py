"""A service as a process of its own, with its health file and log in a folder."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from gangline.local.probe import answers_ok
from support.waiting import DEADLINE_S, wait_until


class ServiceProcess:
    """`python -m MODULE`. It can be killed and started again."""

    def __init__(self, module: str, folder: Path, name: str) -> None:
        self.module = module
        self.folder = folder
        self.log, self._health = folder / f"{name}.log", folder / f"{name}-health.json"
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, environment: Mapping[str, str]) -> None:
        """Start it and wait until it serves."""
        self._health.unlink(missing_ok=True)
        given = {**environment, "GANGLINE_HEALTH_FILE": str(self._health)}
        with self.log.open("ab") as log:
            process = self._process = subprocess.Popen(
                [sys.executable, "-m", self.module], env=given, stderr=log
            )
        wait_until("the start", lambda: self.is_ready() or process.poll() is not None)
        assert process.poll() is None, self.log.read_text(encoding="utf-8")[-4000:]

    def is_ready(self) -> bool:
        """Whether it says that it serves."""
        if not self._health.exists():
            return False
        return answers_ok(f"{json.loads(self._health.read_text(encoding='utf-8'))['url']}/readyz")

    @property
    def pid(self) -> int:
        """The process that runs now."""
        assert self._process is not None
        return self._process.pid

    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process is not None and self._process.poll() is None

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and wait for the end."""
        process, self._process = self._process, None
        assert process is not None
        process.send_signal(number)
        return process.wait(DEADLINE_S)

    def close(self) -> None:
        """End what still runs."""
        if self._process is not None:
            self.end(signal.SIGKILL)


@contextmanager
def service_process(name: str, folder: Path, environment: Mapping[str, str]) -> Iterator[int]:
    """Run `gangline_NAME` during the block, which gets its process id once it is ready."""
    process = ServiceProcess(f"gangline_{name}", folder, name)
    try:
        process.run({**environment, "GANGLINE_INSTANCE_ID": f"{name}-0"})
        yield process.pid
    finally:
        process.close()
