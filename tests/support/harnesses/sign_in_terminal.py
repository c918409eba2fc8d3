"""`gangline login` and `gangline logout` at a gateway with a provider."""

from __future__ import annotations

from pathlib import Path

import pytest

from gangline.local.client import read_login
from support.fixtures.sign_in import SignInGateway
from support.harnesses.cli_run import Runner
from support.harnesses.sign_in_browser import confirm_logins


def login_and_logout(
    gateway: SignInGateway, folder: Path, run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`grace`, an admin by her groups, signs in and out; the sign-in is kept in `folder`."""
    monkeypatch.setenv("GANGLINE_DATA_DIR", str(folder))
    with confirm_logins(monkeypatch, "grace"):
        done = run("login", "--url", gateway.url)
    assert done.code == 0, done.err
    assert "as grace" in done.out
    kept = read_login(folder)
    assert kept is not None
    assert gateway.who(kept.token) == "grace admin "
    assert (folder / "login.json").stat().st_mode & 0o777 == 0o600
    assert kept.token not in done.out + done.err
    assert run("logout").code == 0
    assert read_login(folder) is None
    assert gateway.who(kept.token) is None
