"""The genuine `mlflow server` with MLflow's own store, to compare with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from gangline.local.ports import pick_ports
from support.waiting import DEADLINE_S, wait_until

OFF = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "MLFLOW_ENABLE_AI_GATEWAY": "false",
    "PYTHONHASHSEED": "0",  # some of MLflow's messages list a set
}

REFUSED = frozenset(
    {
        "assistant", "demo", "gateway", "gateway-proxy", "genai", "jobs", "mcp-servers",
        "prompt-optimization", "scorer", "scorers", "ui-telemetry", "webhooks", "workspaces",
    }
)  # fmt: skip
"""Families that this installation does not serve: they run programs or call other hosts, or know
no teams."""

_ROUTES = """
import json
from mlflow.server import app
from mlflow.server.fastapi_app import app as outer
found = {(method, rule.rule) for rule in app.url_map.iter_rules() for method in rule.methods}
for part in outer.routes:
    router = getattr(part, "original_router", None)
    prefix = part.include_context.prefix if router is not None else ""
    for route in getattr(router, "routes", []):
        found |= {(method, prefix + route.path) for method in getattr(route, "methods", ())}
print("ROUTES" + json.dumps(sorted(found)))
"""


def genuine_routes(folder: Path) -> list[tuple[str, str]]:
    """Method and path of each route of the genuine application; the folder gets its database."""
    environment = {
        **os.environ,
        "MLFLOW_ENABLE_WORKSPACES": "true",
        "_MLFLOW_SERVER_FILE_STORE": f"sqlite:///{folder / 'routes.db'}",
        "_MLFLOW_SERVER_ARTIFACT_ROOT": "mlflow-artifacts:/",
        "_MLFLOW_SERVER_ARTIFACT_DESTINATION": str(folder),
        "_MLFLOW_SERVER_SERVE_ARTIFACTS": "true",
    }
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _ROUTES],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    (line,) = [line for line in ended.stdout.splitlines() if line.startswith("ROUTES")]
    return [(method, path) for method, path in json.loads(line.removeprefix("ROUTES"))]


@contextmanager
def genuine_server(folder: Path, team: str) -> Iterator[str]:
    """Its URL, with SQLite in the folder and a workspace for the team; it ends with the block."""
    folder.mkdir(parents=True, exist_ok=True)
    port = pick_ports(1)[0]
    url = f"http://127.0.0.1:{port}"
    argv = [
        sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port),
        "--workers", "1", "--enable-workspaces", "--serve-artifacts",
        "--backend-store-uri", f"sqlite:///{folder / 'genuine.db'}",
        "--artifacts-destination", str(folder / "artifacts"),
        "--uvicorn-opts", "--loop uvloop --http httptools --no-access-log",
    ]  # fmt: skip
    with (folder / "genuine.log").open("ab") as log:
        process = subprocess.Popen(
            argv, env={**os.environ, **OFF}, stdout=log, stderr=log, start_new_session=True
        )
    try:
        wait_until("the genuine server", lambda: _answers(url) or process.poll() is not None)
        assert process.poll() is None, (folder / "genuine.log").read_text()[-4000:]
        made = httpx.post(f"{url}/api/3.0/mlflow/workspaces", json={"name": team}, timeout=60)
        assert made.status_code in {200, 201}, made.text
        yield url
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(DEADLINE_S)


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=2).status_code == 200
    except httpx.HTTPError:
        return False
