"""Tracking servers side by side: ours, MLflow's genuine one, and FastTrackML where it is installed.

All run at once, on SQLite, and are measured in turns. Ours acknowledges by Kafka, with broker and
tracker on the same machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from gangline.local.kafka import EmbeddedKafka
from support.harnesses.fasttrackml import PROGRAM, fasttrackml_server
from support.harnesses.genuine_mlflow import genuine_server
from support.harnesses.mlflow_process import mlflow_server

TEAM = "nlp"
OURS, GENUINE, FASTTRACKML = "ours", "genuine", "fasttrackml"


@dataclass
class Side:
    """One server, with MLflow's unmodified client and a run to log to."""

    name: str
    url: str
    database: Path
    """Its SQLite file."""
    pids: tuple[int | None, ...] = ()
    """Its processes: of ours also the tracker and the broker."""
    environment: dict[str, str] = field(default_factory=dict)
    step: int = 0

    def open(self) -> None:
        """Make an experiment and a run."""
        self.use()
        from mlflow import MlflowClient

        self._client = MlflowClient(self.url, self.url)
        self.experiment = self._client.create_experiment("bench")
        self.many = self._client.create_experiment("many")
        self.new_run()

    def use(self) -> None:
        """The client reads its token and workspace from the environment, at each request."""
        use(self.environment)

    @property
    def client(self) -> Any:
        self.use()
        return self._client

    def new_run(self) -> str:
        self.run_id: str = self.client.create_run(self.experiment).info.run_id
        return self.run_id

    def memory_mb(self) -> float:
        """Proportional set size of the server's process, without tracker and broker."""
        return float(psutil.Process(self.pids[0]).memory_full_info().pss / 1e6)

    def cpu_s(self) -> float:
        """What its processes have used so far: other load changes it less than the clock."""
        first = [psutil.Process(pid) for pid in self.pids]
        family = [*first, *(child for one in first for child in one.children(recursive=True))]
        return sum(sum(process.cpu_times()[:2]) for process in family)


def use(environment: Mapping[str, str]) -> None:
    """Set the client's variables of one server, and remove those of another."""
    for name in ("MLFLOW_TRACKING_TOKEN", "MLFLOW_WORKSPACE"):
        os.environ.pop(name, None)
    os.environ.update(environment)


def _listens(url: str) -> int:
    """The child of this process that runs a server with this port; its workers are its children."""
    port = url.rpartition(":")[2]
    return next(child.pid for child in psutil.Process().children() if port in child.cmdline())


@contextmanager
def servers(folder: Path, *, alone: bool = False) -> Iterator[dict[str, Side]]:
    """Each server by its name; with `alone` only ours."""
    with ExitStack() as stack:
        kafka = stack.enter_context(EmbeddedKafka(folder / "kafka"))
        server = stack.enter_context(mlflow_server(kafka.bootstrap, folder / OURS))
        token = {"MLFLOW_TRACKING_TOKEN": server.token, "MLFLOW_WORKSPACE": TEAM}
        file = Path(server.database.removeprefix("sqlite:///"))
        pids = (server.pid, server.tracker.pid, kafka.pid)
        sides = [Side(OURS, server.url, file, pids, token)]
        if not alone:
            home = folder / GENUINE
            url = stack.enter_context(genuine_server(home, TEAM))
            named = {"MLFLOW_WORKSPACE": TEAM}
            sides.append(Side(GENUINE, url, home / "genuine.db", (_listens(url),), named))
        if not alone and PROGRAM.exists():
            home = folder / FASTTRACKML
            url, pid = stack.enter_context(fasttrackml_server(home))
            sides.append(Side(FASTTRACKML, url, home / "fasttrackml.db", (pid,)))
        for side in sides:
            side.open()
        yield {side.name: side for side in sides}
