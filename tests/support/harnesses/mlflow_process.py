"""The MLflow server as a real process beside a real tracker over real Kafka."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from gangline.local.ports import pick_ports
from gangline.local.probe import answers_ok
from support.harnesses.tracker_process import TrackerProcess
from support.waiting import DEADLINE_S, wait_until


class MlflowProcess:
    """One server over `database`. Requests need `headers(team)`."""

    def __init__(
        self,
        tracker: TrackerProcess,
        database: str | None = None,
        own: Mapping[str, str] | None = None,
    ) -> None:
        self.tracker = tracker
        self.folder = tracker.folder
        self.database = database or f"sqlite:///{tracker.folder / 'mlflow.db'}"
        self.token = tracker.tokens["service"]
        self._own = own or {}
        self._port = pick_ports(1)[0]
        self._health = tracker.folder / "mlflow-health.json"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it serves."""
        self._health.unlink(missing_ok=True)
        environment = {
            **os.environ,
            "GANGLINE_BOOTSTRAP_SERVERS": self.tracker.bootstrap,
            "GANGLINE_TOPIC_PREFIX": self.tracker.names.prefix,
            "GANGLINE_MLFLOW_DATABASE": self.database,
            "GANGLINE_MLFLOW_PORT": str(self._port),
            "GANGLINE_STORE_URL": f"file://{self.folder / 'store'}",
            "GANGLINE_SERVICE_TOKEN": self.token,
            "GANGLINE_CLICKHOUSE_URL": self.tracker.url,
            "GANGLINE_HEALTH_FILE": str(self._health),
            "GANGLINE_INSTANCE_ID": "mlflow-0",
            "PYTHONHASHSEED": "0",  # as the genuine server that it is compared with
            **self._own,
        }
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "gangline_mlflow"], env=environment, stderr=log
            )
        process = self._process
        wait_until("the start", lambda: self._is_ready() or process.poll() is not None)
        assert process.poll() is None, self.log.read_text()[-4000:]

    @property
    def log(self) -> Path:
        """What it has written."""
        return self.folder / "mlflow.log"

    @property
    def url(self) -> str:
        """Where it serves, also after a restart."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        """The process that runs now."""
        assert self._process is not None
        return self._process.pid

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

    def _is_ready(self) -> bool:
        if not self._health.exists():
            return False
        return answers_ok(f"{json.loads(self._health.read_text())['url']}/readyz")


@contextmanager
def mlflow_server(
    bootstrap: str,
    folder: Path,
    database: str | None = None,
    own: Mapping[str, str] | None = None,
) -> Iterator[MlflowProcess]:
    """A tracker and an MLflow server with settings of its `own`; both end with the block."""
    folder.mkdir(parents=True, exist_ok=True)
    tracker = TrackerProcess(bootstrap, folder)
    server: MlflowProcess | None = None
    try:
        tracker.start()
        server = MlflowProcess(tracker, database, own)
        server.start()
        yield server
    finally:
        if server is not None:
            server.close()
        tracker.close()


def peak_bytes(pid: int) -> int:
    """The most memory that a process ever had."""
    (line,) = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(line) * 1024
