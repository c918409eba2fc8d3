"""Sign-in at a genuine Keycloak: pages by the code flow, `gangline login` by the device flow.

Maven fetches Keycloak (176 MB): the tests are skipped where there is no Maven or no Java.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gangline.local.artifacts import default_cache
from gangline.local.ports import pick_ports
from gangline_gateway.oidc.logins import CHECK_S
from support.fixtures.sign_in import SignInGateway, settings_of, sign_in_gateway
from support.harnesses.cli_run import runner
from support.harnesses.sign_in_browser import browser, walk
from support.harnesses.sign_in_terminal import login_and_logout

pytestmark = pytest.mark.nightly
VERSION = "26.7.3"
ARTIFACT = f"org.keycloak:keycloak-quarkus-dist:{VERSION}:tar.gz"
START_S = 900
PASSWORD = "any"


def _person(name: str, *groups: str) -> dict[str, Any]:
    return {
        "username": name, "enabled": True, "email": f"{name}@example.test", "emailVerified": True,
        "firstName": name, "lastName": "L", "groups": groups,
        "credentials": [{"type": "password", "value": PASSWORD, "temporary": False}],
    }  # fmt: skip


def realm(gateway: str) -> dict[str, Any]:
    """A realm as the guide asks for it: one client with PKCE, the device grant and groups."""
    return {
        "realm": "main", "enabled": True, "sslRequired": "none",
        "groups": [{"name": "research"}, {"name": "nlp"}, {"name": "gangline-admins"}],
        "users": [
            _person("ada", "nlp"), _person("grace", "gangline-admins"), _person("eve"),
            {**_person("service-account"), "username": "service-account-operator",
             "serviceAccountClientId": "operator",
             "clientRoles": {"realm-management": ["manage-users", "query-groups", "view-users"]}},
        ],
        "clients": [
            {
                "clientId": "gangline", "publicClient": False, "secret": "console-secret",
                "redirectUris": [f"{gateway}/session/callback"], "standardFlowEnabled": True,
                "attributes": {
                    "pkce.code.challenge.method": "S256",
                    "oauth2.device.authorization.grant.enabled": "true",
                },
                "protocolMappers": [{
                    "name": "groups", "protocol": "openid-connect",
                    "protocolMapper": "oidc-group-membership-mapper",
                    "config": {"claim.name": "groups", "full.path": "false",
                               "id.token.claim": "true", "userinfo.token.claim": "true"},
                }],
            },
            {"clientId": "operator", "publicClient": False, "secret": "operator-secret",
             "serviceAccountsEnabled": True, "standardFlowEnabled": False},
        ],
    }  # fmt: skip


@pytest.fixture(scope="module")
def keycloak() -> Path:
    maven = shutil.which("mvn")
    if maven is None or shutil.which("java") is None:
        pytest.skip("no Maven or no Java here")
    folder = default_cache() / "keycloak" / f"keycloak-{VERSION}"
    if not (folder / "bin" / "kc.sh").is_file():
        folder.parent.mkdir(parents=True, exist_ok=True)
        copy = ["-q", "dependency:copy", f"-Dartifact={ARTIFACT}"]
        done = subprocess.run(
            [maven, *copy, f"-DoutputDirectory={folder.parent}"],
            capture_output=True, text=True, timeout=900, check=False,
        )  # fmt: skip
        if done.returncode:
            pytest.skip(f"Maven could not fetch Keycloak: {done.stdout[-300:]}")
        with tarfile.open(next(folder.parent.glob("*.tar.gz"))) as packed:
            packed.extractall(folder.parent, filter="data")
    return folder


@pytest.fixture(scope="module")
def ports() -> tuple[int, int, int]:
    return tuple(pick_ports(3))  # type: ignore[return-value]


@pytest.fixture(scope="module")
def issuer(
    keycloak: Path, ports: tuple[int, int, int], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    port, management, gateway_port = ports
    home = tmp_path_factory.mktemp("keycloak") / "home"
    shutil.copytree(keycloak, home, symlinks=True)
    (home / "data" / "import").mkdir(parents=True)
    (home / "data" / "import" / "main.json").write_text(
        json.dumps(realm(f"http://127.0.0.1:{gateway_port}"))
    )
    options = (
        "--http-host=127.0.0.1", f"--http-port={port}", "--import-realm", "--cache=local",
        f"--http-management-port={management}",
    )  # fmt: skip
    found = f"http://127.0.0.1:{port}/realms/main"
    command = [str(home / "bin" / "kc.sh"), "start-dev", *options]
    with (
        (home / "log").open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=log) as process,
    ):
        try:
            _wait_until_up(f"{found}/.well-known/openid-configuration", process, home / "log")
            yield found
        finally:
            process.terminate()
            process.wait(60)


def _wait_until_up(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until and process.poll() is None:
        try:
            if httpx.get(url, trust_env=False).is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.5)
    raise AssertionError(f"Keycloak did not start:\n{log.read_text()[-3000:]}")


@pytest.fixture(scope="module")
def gateway(
    issuer: str, ports: tuple[int, int, int], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SignInGateway]:
    folder = tmp_path_factory.mktemp("gateway")
    with sign_in_gateway(folder, settings_of(folder, issuer, "gangline"), ports[2]) as found:
        yield found


@pytest.fixture(scope="module")
def operate(issuer: str) -> Callable[[str, str], httpx.Response]:
    """Keycloak's own REST, as its operator: a method and a path below the realm."""
    token = httpx.post(
        f"{issuer}/protocol/openid-connect/token", data={"grant_type": "client_credentials"},
        auth=("operator", "operator-secret"), trust_env=False,
    ).json()["access_token"]  # fmt: skip
    place = issuer.replace("/realms/", "/admin/realms/")

    def ask(method: str, path: str) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token}"}
        answer = httpx.request(method, f"{place}/{path}", headers=headers, trust_env=False)
        answer.raise_for_status()
        return answer

    return ask


def sign_in(gateway: SignInGateway, web: httpx.Client, name: str) -> httpx.Response:
    page = web.get(f"{gateway.url}/session/provider?next=/console/")
    return walk(web, page, name, f"{gateway.url}/session/callback")


def test_a_page_signs_in_and_ends_when_the_person_is_in_no_group(
    gateway: SignInGateway, operate: Callable[[str, str], httpx.Response]
) -> None:
    (person,) = operate("GET", "users?username=ada&exact=true").json()
    (group,) = [each for each in operate("GET", "groups").json() if each["name"] == "nlp"]
    with browser() as web:
        assert sign_in(gateway, web, "ada").status_code == 200
        assert gateway.who(web) == "ada member nlp,speech"
        try:
            gateway.ahead_s += CHECK_S
            assert gateway.who(web) == "ada member nlp,speech"
            operate("DELETE", f"users/{person['id']}/groups/{group['id']}")
            gateway.ahead_s += CHECK_S
            assert gateway.who(web) is None
        finally:
            gateway.ahead_s = 0.0
            operate("PUT", f"users/{person['id']}/groups/{group['id']}")


def test_a_page_ends_when_the_provider_signs_the_person_out(
    gateway: SignInGateway, operate: Callable[[str, str], httpx.Response]
) -> None:
    (person,) = operate("GET", "users?username=ada&exact=true").json()
    with browser() as web:
        assert sign_in(gateway, web, "ada").status_code == 200
        try:
            operate("POST", f"users/{person['id']}/logout")
            gateway.ahead_s += CHECK_S
            assert gateway.who(web) is None
        finally:
            gateway.ahead_s = 0.0


def test_a_person_in_no_group_is_refused(gateway: SignInGateway) -> None:
    with browser() as web:
        done = sign_in(gateway, web, "eve")
        assert done.status_code == 403
        assert "no group of eve has rights here" in done.text


def test_a_terminal_signs_in_and_out(
    gateway: SignInGateway,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    login_and_logout(gateway, tmp_path, runner(capsys), monkeypatch)
