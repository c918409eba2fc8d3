"""A gateway with a certificate of its own authority: the command line proves it, or refuses it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.responses import JSONResponse

from gangline.errors import CliError
from gangline.local.certificates import Authority
from gangline.local.client import Client, Login
from gangline.sdk import connect
from gangline.transport import Transport
from gangline_service.http_server import HttpServer

ANSWER = {"version": "1", "api": "v1"}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def url(authority: Authority) -> Iterator[str]:
    own = authority.keep("gateway")
    server = HttpServer("127.0.0.1", 0)
    server.start(JSONResponse(ANSWER), tls=(own, own))
    yield f"https://127.0.0.1:{server.port}"
    server.close()


@pytest.fixture(autouse=True)
def no_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GANGLINE_URL", "GANGLINE_TOKEN", "GANGLINE_CA_FILE"):
        monkeypatch.delenv(name, raising=False)


def test_without_the_authority_it_is_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(CliError, match="not by a known authority") as refused:
        Transport(url, "t").call("GET", "/v1/version")
    assert "GANGLINE_CA_FILE" in refused.value.hint
    other = Authority(tmp_path / "other")
    with pytest.raises(CliError, match="not by a known authority"):
        Transport(url, "t", ca=other.path).call("GET", "/v1/version")


@pytest.mark.parametrize("kept", ["variable", "platform", "login"])
def test_with_it_commands_are_answered(
    url: str, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: str
) -> None:
    ca = str(authority.path)
    monkeypatch.setenv("GANGLINE_DATA_DIR", str(tmp_path))
    if kept == "variable":
        monkeypatch.setenv("GANGLINE_CA_FILE", ca)
        monkeypatch.setenv("GANGLINE_URL", url)
    elif kept == "platform":
        Client(url, "t", ca=ca).write(tmp_path)
    else:
        Login(url, "t", "ada", ca=ca).write(tmp_path)
    with connect() as client:
        assert client.version().version == "1"
    with connect(url, "another") as client:  # the address is what a file is for
        assert client.version().version == "1"


def test_a_file_that_is_no_authority_names_the_way_out(url: str, tmp_path: Path) -> None:
    for text in (None, "no certificate"):
        file = tmp_path / "ca.pem"
        if text is not None:
            file.write_text(text)
        with pytest.raises(CliError, match="is no PEM file") as refused:
            Transport(url, "t", ca=file)
        assert "GANGLINE_CA_FILE" in refused.value.hint
