"""MLflow through the gateway: the guide's example, and what a team's token reaches."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from gangline.sdk import connect
from support.fixtures.platform import RunningPlatform
from support.harnesses.cli_run import runner

pytest.importorskip("mlflow")

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "mlflow.md"


def example() -> str:
    found = re.findall(r"```python\n(.+?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    return str(found[0])


@pytest.fixture
def http(platform: RunningPlatform) -> Iterator[httpx.Client]:
    with connect(platform.client.url, platform.client.token) as gateway:
        gateway.configure_team("nlp", gpu_limit=4)
    with httpx.Client(base_url=f"{platform.client.url}/mlflow/teams/nlp", timeout=120) as client:
        yield client


def test_the_guide_s_example(platform: RunningPlatform, http: httpx.Client, tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(
        f"{example()}\nprint(run.info.run_id in {{*best.run_id}}, best['metrics.loss'].min())\n"
    )
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
        "MLFLOW_TRACKING_URI": f"{platform.client.url}/mlflow/teams/default",
        "MLFLOW_TRACKING_TOKEN": platform.client.token,
        "MLFLOW_WORKSPACE": "default",  # the gateway decides
    }
    ended = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert ended.stdout.splitlines()[-1] == "True 0.02"


def test_a_browser_signs_in_and_sees_the_ui(
    platform: RunningPlatform, http: httpx.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = http.get("/", headers={"Accept": "text/html"})
    assert asked.status_code == 303
    assert asked.headers["location"].startswith("/session?next=%2Fmlflow%2Fteams%2Fnlp%2F")
    options = ("--url", platform.client.url, "--token", platform.client.token)
    printed = runner(capsys)("open", "--team", "nlp", "--print", *options)
    assert printed.code == 0, printed.err
    page, _, code = printed.out.strip().partition("#")
    assert page == f"{platform.client.url}/session?next=%2Fmlflow%2Fteams%2Fnlp%2F"
    begun = http.post(
        f"{platform.client.url}/session", data={"code": code, "next": "/mlflow/teams/nlp/"},
        headers={"Origin": platform.client.url}, follow_redirects=True,
    )  # fmt: skip
    assert begun.status_code == 200
    assert "<title>MLflow</title>" in begun.text
    script = re.findall(r'src="(?:\./)?(static-files/[^"]+\.js)"', begun.text)[0]
    assert http.get(f"/{script}").status_code == 200
    elsewhere = {"Origin": "http://elsewhere.example"}
    assert http.get("/version", headers=elsewhere).status_code == 403
    # MLflow's client may have the token as a password
    assert http.get("/version", auth=("any", platform.client.token)).status_code == 200


def test_routes_without_teams_are_refused(platform: RunningPlatform, http: httpx.Client) -> None:
    http.headers["Authorization"] = f"Bearer {platform.client.token}"
    for path in ("workspaces", "webhooks/list", "assistant/config", "gateway/secrets/list"):
        answer = http.get(f"/ajax-api/3.0/mlflow/{path}")
        assert answer.status_code == 403
        assert answer.json()["error_code"] == "PERMISSION_DENIED"
    files = "/api/2.0/mlflow-artifacts/artifacts"
    assert http.get(f"{files}/%2e%2e/workspaces/vision/x").status_code == 400
    version = {"name": "sft", "source": "s3://bucket/workspaces/vision"}
    assert http.post("/api/2.0/mlflow/model-versions/create", json=version).status_code == 400
