"""A token in a file: read again each time, named in errors without any part of it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import structlog

from gangline_bus.kafka import KafkaBus
from gangline_bus.kafka_token import LOOK_S, TOKEN_URL, TokenFile, TokenUnusable, client_settings
from gangline_bus.ports import BusUnavailable
from support.builders.service_account import AUDIENCE, ISSUER, ApiServer, account, mount

SERVER = ApiServer()


def settings(path: Path | str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        TOKEN_URL: path if isinstance(path, str) else path.as_uri(),
    }


def file_at(path: Path) -> TokenFile:
    found = TokenFile.named(settings(path))
    assert found is not None
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kafka" / "token"


def test_a_client_gets_the_token_its_principal_and_an_expiry(path: Path) -> None:
    mount(path, SERVER.token("tracker", lifetime_s=20) + "\n")
    file = file_at(path)
    text, expires_s, principal, extensions = file.give("")
    assert (principal, extensions) == (account("tracker"), {})
    assert f"{text}\n" == path.read_text()
    assert expires_s == file.read().expires_s


def test_a_client_soon_asks_for_a_token_that_was_replaced(path: Path) -> None:
    mount(path, SERVER.token("tracker"))
    file = TokenFile(path, clock=lambda: now)
    now = time.time()
    first, expires_s, *_ = file.give()
    assert expires_s == now + LOOK_S
    mount(path, SERVER.token("tracker", lifetime_s=7200))
    assert file.give()[0] != first


BAD: dict[str, tuple[str | dict[str, Any] | None, str]] = {
    "missing": (None, "cannot be read"),
    "empty": ("", "is empty"),
    "a word": ("not-a-token", "no JSON Web Token"),
    "no JSON": ("a.b.c", "no JSON Web Token"),
    "too long": ("x" * 100_000, "no JSON Web Token"),
    "expired": ({"lifetime_s": -10}, "has expired: audience kafka"),
    "without expiry": ({"exp": None}, "without the claim `exp`"),
    "endless": ({"exp": 1e300}, "is no time"),
    "of nobody": ({"sub": ""}, "without the claim `sub`"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_file_without_a_good_token_is_named_with_the_way_out(path: Path, kind: str) -> None:
    given, said = BAD[kind]
    content = SERVER.token("tracker", **given) if isinstance(given, dict) else given
    if content is not None:
        mount(path, content)
    file = file_at(path)
    with structlog.testing.capture_logs() as logs, pytest.raises(TokenUnusable) as error:
        file.give()
    for text in (str(error.value), str(logs)):
        assert said in text
        assert str(path) in text
        assert TOKEN_URL in text
        assert "docs/guides/kubernetes.md" in text
        assert not content or content not in text
    mount(path, SERVER.token("tracker"))
    assert file.give()[2] == account("tracker")


def test_an_error_is_logged_now_and_then_while_clients_try_again(path: Path) -> None:
    times_s = [0.0, 0.1, 5.0, 10.0, 10.1]
    file = TokenFile(path, clock=lambda: times_s[0])
    with structlog.testing.capture_logs() as logs:
        while times_s:
            with pytest.raises(TokenUnusable):
                file.give()
            times_s.pop(0)
    assert len(logs) == 2


def test_no_part_of_a_token_is_shown(path: Path) -> None:
    mount(path, SERVER.token("tracker"))
    token = file_at(path).read()
    assert str(token).startswith(f"audience {AUDIENCE}, issuer {ISSUER}, valid until ")
    for part in token.text.split("."):
        assert part not in f"{token} {token!r}"


@pytest.mark.parametrize(
    "others",
    [
        {},
        {TOKEN_URL: "file:///run/token"},
        {"sasl.mechanism": "SCRAM-SHA-512", TOKEN_URL: "file:///run/token"},
        {"sasl.mechanism": "OAUTHBEARER", TOKEN_URL: "https://idp.example/token"},
    ],
)
def test_other_ways_to_connect_stay_as_they_are(others: dict[str, str]) -> None:
    assert TokenFile.named(others) is None
    assert client_settings(others, None) == others


@pytest.mark.parametrize("url", ["file:token", "file://host/run/token"])
def test_a_url_without_an_absolute_path_is_refused(url: str) -> None:
    with pytest.raises(TokenUnusable, match="file:///PATH"):
        TokenFile.named(settings(url))


def test_a_bus_makes_no_client_without_a_token(path: Path) -> None:
    bus = KafkaBus("127.0.0.1:1", settings=settings(path))
    with pytest.raises(BusUnavailable, match="cannot be read"):
        bus.partitions("gangline.steps")
    with pytest.raises(BusUnavailable, match="cannot be read"):
        bus.writer()
