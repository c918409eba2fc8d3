"""deploy/services/gangline.toml is read by the services themselves, and holds no secret."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from pathlib import Path

import pytest

from gangline_alerts.service.config import AlertSettings
from gangline_gateway.config import Settings as GatewaySettings
from gangline_quota.service.config import QuotaSettings
from gangline_scheduler.service.config import SchedulerSettings
from gangline_service.tokens import Role, TokenBook
from gangline_worker.agent.config import AgentSettings

FOLDER = Path(__file__).parents[3] / "deploy" / "services"
EXAMPLE = FOLDER / "gangline.toml"


@pytest.fixture(autouse=True)
def config(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GANGLINE_CONFIG", str(EXAMPLE))


def test_the_gateway_reads_snapshots_where_the_scheduler_writes_them() -> None:
    scheduler, gateway = SchedulerSettings(), GatewaySettings()
    assert scheduler.store_url is not None
    assert (gateway.store_url, gateway.topic_prefix) == (
        scheduler.store_url,
        scheduler.topic_prefix,
    )


def test_one_file_is_read_by_all_services() -> None:
    assert QuotaSettings().bootstrap_servers == SchedulerSettings().bootstrap_servers


def test_the_alerts_service_reads_its_table() -> None:
    assert AlertSettings().alerts_file == Path("/etc/gangline/alerts.yaml")
    assert GatewaySettings().alerts_file == AlertSettings().alerts_file


def test_agents_send_jobs_to_the_gateway() -> None:
    agent, gateway = AgentSettings(), GatewaySettings()
    host = f"{gateway.allowed_hosts[0]}:{gateway.gateway_port}"
    assert agent.mlflow_tracking_uri == f"{gateway.scheme}://{host}/mlflow"
    assert agent.store_url == gateway.store_url


def test_it_holds_no_secret_but_says_where_it_comes_from() -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    assert "service_token" not in tomllib.loads(text)["gateway"]
    assert "secretKeyRef" in text
    assert GatewaySettings().secret_values() == frozenset()


def test_the_hash_of_the_page_lets_the_gateway_in(tmp_path: Path) -> None:
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    block = re.search(r"```json\n(.*?)```", page, re.DOTALL)
    assert block is not None
    token = "a-token-of-43-characters-made-for-this-test"
    tokens = json.loads(block[1].replace("HASH", hashlib.sha256(token.encode()).hexdigest()))
    path = tmp_path / "tokens.json"
    path.write_text(json.dumps(tokens))
    path.chmod(0o600)
    found = TokenBook.load(path).authenticate(token)
    assert found is not None
    assert found.role is Role.SERVICE


def test_the_registry_of_the_install_guide_reaches_mlflow() -> None:
    guide = (FOLDER.parents[1] / "docs" / "guides" / "install.md").read_text(encoding="utf-8")
    file = re.search(
        r"^```toml\n# /etc/gangline/gangline.toml\n(.*?)^```", guide, re.MULTILINE | re.DOTALL
    )
    assert file is not None
    settings = tomllib.loads(file[1])
    assert settings["registry"]["mlflow_url"] == settings["gateway"]["mlflow_url"]
    given = re.search(r"^for part in (.*); do\n  echo .GANGLINE_SERVICE_TOKEN", guide, re.MULTILINE)
    assert given is not None
    assert {"gateway", "mlflow", "console", "registry"} == {*given[1].split()}
