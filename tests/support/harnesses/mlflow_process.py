"""The MLflow server as a real process beside a real tracker over real Kafka."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from gangline.local.ports import pick_ports
from support.harnesses.service_process import ServiceProcess
from support.harnesses.tracker_process import TrackerProcess


class MlflowProcess(ServiceProcess):
    """One server over `database`. Requests need `headers(team)`."""

    def __init__(
        self,
        tracker: TrackerProcess,
        database: str | None = None,
        own: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__("gangline_mlflow", tracker.folder, "mlflow")
        self.tracker = tracker
        self.database = database or f"sqlite:///{tracker.folder / 'mlflow.db'}"
        self.token = tracker.tokens["service"]
        self._own = own or {}
        self._port = pick_ports(1)[0]

    def start(self) -> None:
        """Start it and wait until it serves."""
        environment = {
            **os.environ,
            "GANGLINE_BOOTSTRAP_SERVERS": self.tracker.bootstrap,
            "GANGLINE_TOPIC_PREFIX": self.tracker.names.prefix,
            "GANGLINE_MLFLOW_DATABASE": self.database,
            "GANGLINE_MLFLOW_PORT": str(self._port),
            "GANGLINE_STORE_URL": f"file://{self.folder / 'store'}",
            "GANGLINE_SERVICE_TOKEN": self.token,
            "GANGLINE_CLICKHOUSE_URL": self.tracker.url,
            "GANGLINE_INSTANCE_ID": "mlflow-0",
            "PYTHONHASHSEED": "0",  # as the genuine server that it is compared with
            **self._own,
        }
        self.run(environment)

    @property
    def url(self) -> str:
        """Where it serves, also after a restart."""
        return f"http://127.0.0.1:{self._port}"


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
