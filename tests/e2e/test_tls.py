"""`gangline up --secure`: the gateway, the console behind it, and ranks speak TLS."""

from __future__ import annotations

import ssl
from collections.abc import Iterator

import httpx
import pytest

from gangline.errors import CliError
from gangline.local.client import Client
from gangline.sdk import connect
from support.fixtures.platform import start_platform

pytestmark = pytest.mark.nightly
ASK = """
import os, ssl, sys, urllib.error, urllib.request
trust = ssl.create_default_context(cafile=os.environ["MLFLOW_TRACKING_SERVER_CERT_PATH"])
try:
    urllib.request.urlopen(os.environ["MLFLOW_TRACKING_URI"], context=trust)
except urllib.error.HTTPError as answer:
    sys.exit(answer.code != 401)
"""
SPEC = {
    "name": "asks", "team": "default", "command": ["python", "-c", ASK], "resources": {"gpus": 1},
}  # fmt: skip


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("tls")
    running, _ = start_platform(folder, nodes=1, secure=True, tls=True, live_view=False)
    with running:
        yield running.start()


def test_gateway_console_and_ranks_speak_tls(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert client.url.startswith("https://127.0.0.1:")
    monkeypatch.delenv("GANGLINE_CA_FILE", raising=False)
    with pytest.raises(CliError, match="not by a known authority"):
        connect(client.url, client.token).version()
    monkeypatch.setenv("GANGLINE_CA_FILE", client.ca)
    trust = ssl.create_default_context(cafile=client.ca)
    headers = {"Authorization": f"Bearer {client.token}", "Accept": "text/html"}
    page = httpx.get(f"{client.url}/console/nodes", headers=headers, verify=trust, timeout=60)
    assert page.status_code == 200
    assert "node-0" in page.text
    with connect(client.url, client.token) as gateway:
        job = gateway.submit(SPEC)
        assert gateway.wait(job.job_id).state == "succeeded"
