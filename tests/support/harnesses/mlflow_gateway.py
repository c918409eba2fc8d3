"""The real gateway as a process before a real MLflow server, for users with tokens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gangline.local.probe import answers_ok
from support.harnesses.mlflow_process import MlflowProcess, mlflow_server
from support.harnesses.tracker_process import DEADLINE_S, wait_until


@dataclass(frozen=True)
class MlflowGateway:
    """Both processes; users reach `url` with one of `tokens` (admin, nlp, vision)."""

    mlflow: MlflowProcess
    url: str
    pid: int

    @property
    def tokens(self) -> Mapping[str, str]:
        """By name: of an admin, of two teams, of a service."""
        return self.mlflow.tracker.tokens

    def tracking_uri(self, team: str) -> str:
        """MLflow's address of a team."""
        return f"{self.url}/mlflow/teams/{team}"


@contextmanager
def mlflow_gateway(
    bootstrap: str, folder: Path, own: Mapping[str, str] | None = None
) -> Iterator[MlflowGateway]:
    """A tracker, an MLflow server and a gateway; all end with the block."""
    with mlflow_server(bootstrap, folder, own=own) as mlflow:
        health, address = folder / "gateway-health.json", folder / "gateway.json"
        environment = {
            **os.environ,
            "GANGLINE_BOOTSTRAP_SERVERS": bootstrap,
            "GANGLINE_TOPIC_PREFIX": mlflow.tracker.names.prefix,
            "GANGLINE_TOKENS_FILE": str(folder / "tokens.json"),
            "GANGLINE_SERVICE_TOKEN": mlflow.token,
            "GANGLINE_MLFLOW_URL": mlflow.url,
            "GANGLINE_CLICKHOUSE_URL": mlflow.tracker.url,
            "GANGLINE_GATEWAY_FILE": str(address),
            "GANGLINE_HEALTH_FILE": str(health),
            "GANGLINE_INSTANCE_ID": "gateway-0",
        }
        with (folder / "gateway.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "gangline_gateway"], env=environment, stderr=log
            )
        try:
            wait_until("the gateway", lambda: _is_ready(health) or process.poll() is not None)
            assert process.poll() is None, (folder / "gateway.log").read_text()[-4000:]
            url = json.loads(address.read_text(encoding="utf-8"))["url"]
            yield MlflowGateway(mlflow, url, process.pid)
        finally:
            process.kill()
            process.wait(DEADLINE_S)


def _is_ready(health: Path) -> bool:
    if not health.exists():
        return False
    return answers_ok(f"{json.loads(health.read_text(encoding='utf-8'))['url']}/readyz")
