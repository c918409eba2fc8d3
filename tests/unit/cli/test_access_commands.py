"""`gangline audit`, `token`, `login` and `logout`: what they ask, show and keep."""

from __future__ import annotations

from pathlib import Path

import pytest

from gangline.commands import login
from gangline.local.client import Client, Login, read_login
from support.fakes.stub_gateway import NOW, TOKEN, Reply, Stub
from support.harnesses.cli_run import Runner

MADE = {
    "token_id": "t-1", "name": "nightly", "owner": "ada", "scope": "submit", "teams": ["nlp"],
    "state": "active", "made_at": NOW, "expires_at": "2027-02-19T10:00:00Z", "revoked_at": None,
}  # fmt: skip
ENTRY = {
    "time": NOW, "user": "ada", "role": "member", "via": "token", "token": "",
    "action": "job.submit", "team": "nlp", "target": "llama-sft-7f3k2a", "outcome": "done",
    "status": 201, "address": "10.0.4.17", "trace": "4bf9",
}  # fmt: skip
BEGUN = {
    "handle": "h", "user_code": "WDJB-MJHT", "verification_uri": "https://sso/device",
    "verification_uri_complete": None, "interval_s": 1.0, "expires_s": 600.0,
}  # fmt: skip


def test_the_audit_log_is_asked_and_shown(stub: Stub, gangline: Runner) -> None:
    refused = {**ENTRY, "action": "node.drain", "outcome": "refused", "status": 403, "team": ""}
    stub.on("GET", "/v1/audit", {"entries": [refused, ENTRY], "cursor": None})
    done = gangline(
        "audit", "--user", "ada", "--team", "nlp", "--action", "job", "--refused", "-n", "7"
    )
    query = stub.asked[-1].query
    assert query["user"] + query["team"] + query["action"] + query["outcome"] == [
        "ada", "nlp", "job", "refused",
    ]  # fmt: skip
    assert query["limit"] == ["7"]
    lines = done.out.splitlines()
    assert "refused (403)" in lines[1]
    assert "2026-11-21 10:00:00" in lines[2]
    assert max(map(len, lines)) <= 80


def test_a_token_is_printed_once_and_alone(stub: Stub, gangline: Runner) -> None:
    stub.on("POST", "/v1/tokens", Reply({**MADE, "token": "gl_pat_x"}, 201))
    done = gangline(
        "token", "create", "nightly", "--scope", "submit", "--days", "30", "--team", "nlp"
    )
    assert done.out == "gl_pat_x\n"
    assert "not shown again" in done.err
    assert stub.asked[-1].json == {
        "name": "nightly", "scope": "submit", "days": 30, "teams": ["nlp"]
    }  # fmt: skip


def test_tokens_are_listed_and_revoked(stub: Stub, gangline: Runner) -> None:
    stub.on("GET", "/v1/tokens", {"tokens": [MADE]})
    done = gangline("token", "list", "--all")
    assert stub.asked[-1].query["of"] == ["all"]
    assert " ".join(done.out.split()).endswith("t-1 nightly ada submit nlp 2027-02-19 active")
    stub.on("DELETE", "/v1/tokens/t-1", Reply(None, 204))
    assert "t-1 is revoked" in gangline("token", "revoke", "t-1").out


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No gateway in the environment, and no pauses."""
    monkeypatch.delenv("GANGLINE_URL")
    monkeypatch.delenv("GANGLINE_TOKEN")
    monkeypatch.setenv("GANGLINE_DATA_DIR", str(tmp_path))
    monkeypatch.setattr(login.time, "sleep", lambda _: None)
    return tmp_path


def test_a_sign_in_is_kept_for_further_commands(stub: Stub, gangline: Runner, home: Path) -> None:
    stub.on("POST", "/session/device", BEGUN)
    stub.on(
        "POST", "/session/device/token", Reply({"state": "pending"}, 202),
        {"token": TOKEN, "user": "ada", "expires_s": 43_200},
    )  # fmt: skip
    done = gangline("login", "--url", stub.url)
    assert "https://sso/device" in done.err
    assert "WDJB-MJHT" in done.err
    assert "as ada, for 12 hours at most" in done.out
    assert TOKEN not in done.out + done.err
    assert read_login(home) == Login(stub.url, TOKEN, user="ada")
    Client("http://127.0.0.1:9", "of-the-platform").write(home)
    stub.on("GET", "/v1/tokens", {"tokens": []})
    assert gangline("token", "list").code == 0, "a sign-in goes before the platform of this machine"
    assert stub.asked[-1].headers["authorization"] == f"Bearer {TOKEN}"
    stub.on("POST", "/session/end", {})
    assert "signed out" in gangline("logout").out
    assert stub.asked[-1].headers["authorization"] == f"Bearer {TOKEN}"
    assert read_login(home) is None
    assert "not signed in" in gangline("logout").out


def test_a_code_that_nobody_confirms_ends_the_sign_in(
    stub: Stub, gangline: Runner, home: Path
) -> None:
    stub.on("POST", "/session/device", {**BEGUN, "expires_s": 0.0})
    done = gangline("login", "--url", stub.url)
    assert done.code == 1
    assert "not confirmed in time" in done.err
    assert read_login(home) is None


@pytest.mark.parametrize("state", ["nobody listens", "refuses", "no authority"])
def test_a_sign_in_is_forgotten_although_the_gateway_cannot_end_it(
    stub: Stub, gangline: Runner, home: Path, state: str
) -> None:
    stub.on("POST", "/session/end", Reply({"detail": "another host"}, 421))
    url = {"nobody listens": "http://127.0.0.1:9", "no authority": "https://127.0.0.1:9"}
    Login(url.get(state, stub.url), TOKEN, "ada", ca=str(home / "gone.pem")).write(home)
    done = gangline("logout")
    assert (done.code, read_login(home)) == (0, None)
    assert "was not ended at the gateway" in done.err


def test_without_a_provider_and_after_a_refusal_the_way_out_is_named(
    stub: Stub, gangline: Runner, home: Path
) -> None:
    problem = {
        "type": "urn:gangline:problem:no-provider", "title": "Not Found", "status": 404,
        "detail": "this installation has no sign-in provider", "instance": "i", "errors": [],
    }  # fmt: skip
    stub.on("POST", "/session/device", Reply(problem, 404), BEGUN)
    assert "no sign-in provider" in gangline("login", "--url", stub.url).err
    refused = {**problem, "status": 403, "detail": "no group of ada has rights here"}
    stub.on("POST", "/session/device/token", Reply(refused, 403))
    done = gangline("login", "--url", stub.url)
    assert "no group of ada has rights here" in done.err
    assert read_login(home) is None
    assert gangline("login").code == 2, "no gateway is known"
