"""The real gateway as a process before a real MLflow server, for users with tokens."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.harnesses.mlflow_process import MlflowProcess, mlflow_server
from support.harnesses.service_process import service_process


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
        address = folder / "gateway.json"
        environment = {
            **os.environ,
            "GANGLINE_BOOTSTRAP_SERVERS": bootstrap,
            "GANGLINE_TOPIC_PREFIX": mlflow.tracker.names.prefix,
            "GANGLINE_TOKENS_FILE": str(folder / "tokens.json"),
            "GANGLINE_SERVICE_TOKEN": mlflow.token,
            "GANGLINE_MLFLOW_URL": mlflow.url,
            "GANGLINE_CLICKHOUSE_URL": mlflow.tracker.url,
            "GANGLINE_GATEWAY_FILE": str(address),
        }
        with service_process("gateway", folder, environment) as pid:
            url = json.loads(address.read_text(encoding="utf-8"))["url"]
            yield MlflowGateway(mlflow, url, pid)
