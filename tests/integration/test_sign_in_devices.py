"""`gangline login` by the device flow, and pages by the code flow, at a genuine OpenID provider.

The provider is the npm package `oidc-provider`: the tests are skipped where there is no Node.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

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
PACKAGE = "oidc-provider@9"
SCRIPT = Path(__file__).parents[1] / "support" / "fakes" / "oidc_provider.mjs"


@pytest.fixture(scope="module")
def provider_script() -> Path:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("no Node here")
    folder = default_cache() / "oidc-provider"
    if not (folder / "node_modules" / "oidc-provider").is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            [npm, "install", "--no-audit", "--no-fund", "--prefix", str(folder), PACKAGE],
            capture_output=True, text=True, timeout=280, check=False,
        )  # fmt: skip
        if done.returncode:
            pytest.skip(f"npm could not fetch the provider: {done.stderr[-300:]}")
    return Path(shutil.copy(SCRIPT, folder / SCRIPT.name))


@pytest.fixture(scope="module")
def ports() -> tuple[int, int]:
    first, second = pick_ports(2)
    return first, second


@pytest.fixture(scope="module")
def issuer(provider_script: Path, ports: tuple[int, int]) -> Iterator[str]:
    port, gateway_port = ports
    callback = f"http://127.0.0.1:{gateway_port}/session/callback"
    with subprocess.Popen(
        ["node", str(provider_script), str(port), callback],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.kill()


@pytest.fixture(scope="module")
def gateway(
    issuer: str, ports: tuple[int, int], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SignInGateway]:
    folder = tmp_path_factory.mktemp("gateway")
    with sign_in_gateway(folder, settings_of(folder, issuer, "gangline"), ports[1]) as found:
        yield found


def groups(issuer: str, name: str, *given: str) -> None:
    httpx.put(f"{issuer}/groups/{name}", json=given).raise_for_status()


def test_a_page_signs_in_and_ends_when_the_group_is_gone(
    issuer: str, gateway: SignInGateway
) -> None:
    groups(issuer, "ada", "nlp")
    with browser() as web:
        page = web.get(f"{gateway.url}/session/provider?next=/console/")
        done = walk(web, page, "ada", f"{gateway.url}/session/callback")
        assert done.status_code == 200, done.text
        assert gateway.who(web) == "ada member nlp,speech"
        try:
            gateway.ahead_s += CHECK_S
            assert gateway.who(web) == "ada member nlp,speech"
            groups(issuer, "ada")
            gateway.ahead_s += CHECK_S
            assert gateway.who(web) is None
        finally:
            gateway.ahead_s = 0.0


def test_a_terminal_signs_in_and_out(
    issuer: str,
    gateway: SignInGateway,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    groups(issuer, "grace", "gangline-admins")
    login_and_logout(gateway, tmp_path, runner(capsys), monkeypatch)
