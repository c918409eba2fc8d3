"""Sign-in by the code flow at a provider, its end when a person is removed, and forged tokens."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import oidc_provider_mock
import pytest
from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey

from gangline_gateway.oidc.logins import CHECK_S, Logins
from gangline_gateway.oidc.provider import Granted, Provider, TokenRefusedError
from gangline_gateway.oidc.settings import OidcFileError, read_settings
from gangline_schemas.access import TokenScope
from gangline_schemas.events.access import AccessTokenSet
from gangline_service.tokens import token_hash
from support.fixtures.sign_in import SignInGateway, settings_of, sign_in_gateway
from support.harnesses.sign_in_browser import browser, walk

CLIENT = "gangline"
ADA = {"preferred_username": "ada", "groups": ["nlp", "unknown"]}


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    with oidc_provider_mock.run_server_in_thread() as server:
        yield f"http://localhost:{server.server_port}"


@pytest.fixture(scope="module")
def gateway(issuer: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SignInGateway]:
    folder = tmp_path_factory.mktemp("gateway")
    with sign_in_gateway(folder, settings_of(folder, issuer, CLIENT)) as found:
        yield found


@pytest.fixture
def web() -> Iterator[httpx.Client]:
    with browser() as client:
        yield client


def person(issuer: str, name: str, **claims: Any) -> None:
    httpx.put(f"{issuer}/users/{name}", json=claims).raise_for_status()


def sign_in(
    gateway: SignInGateway, web: httpx.Client, name: str, place: str = ""
) -> httpx.Response:
    page = web.get(f"{gateway.url}/session/provider?next={place or '/console/'}")
    return walk(web, page, name, f"{gateway.url}/session/callback")


def test_a_person_signs_in_and_has_the_rights_of_the_groups(
    issuer: str, gateway: SignInGateway, web: httpx.Client
) -> None:
    person(issuer, "s-ada", **ADA)
    form = web.get(f"{gateway.url}/session?next=/console/jobs")
    assert "/session/provider?next=%2Fconsole%2Fjobs" in form.text
    done = sign_in(gateway, web, "s-ada", "/console/jobs%3Fa=1")
    assert done.status_code == 200
    assert 'href="/console/jobs?a=1"' in done.text
    assert gateway.who(web) == "ada member nlp,speech"
    cookie = done.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()
    kept = (gateway.folder / "sign-ins.json").read_text()
    assert "s-ada" in kept
    assert "refresh" not in kept
    web.post(f"{gateway.url}/session/end", headers={"Origin": gateway.url})
    assert gateway.who(web) is None


def test_an_admin_is_one_by_a_group(issuer: str, gateway: SignInGateway, web: httpx.Client) -> None:
    person(issuer, "s-root", preferred_username="grace", groups=["gangline-admins"])
    sign_in(gateway, web, "s-root")
    assert gateway.who(web) == "grace admin "


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"preferred_username": "eve", "groups": []}, "no group of eve has rights here"),
        ({"preferred_username": "eve", "groups": "guests"}, "no group of eve has rights here"),
        ({"groups": ["nlp"]}, "no name in the claim preferred_username"),
        ({"preferred_username": "ci", "groups": ["nlp"]}, "one of the file of tokens"),
    ],
)
def test_a_person_without_rights_or_a_name_is_refused(
    issuer: str, gateway: SignInGateway, web: httpx.Client, claims: dict[str, Any], reason: str
) -> None:
    person(issuer, "s-eve", **claims)
    done = sign_in(gateway, web, "s-eve")
    assert done.status_code == 403
    assert reason in done.text
    assert gateway.who(web) is None


def test_an_answer_that_this_browser_did_not_ask_for_is_refused(
    issuer: str, gateway: SignInGateway, web: httpx.Client
) -> None:
    person(issuer, "s-ada", **ADA)
    started = web.get(f"{gateway.url}/session/provider")
    place = started.headers["location"]
    asked = parse_qs(urlsplit(place).query)
    assert asked["code_challenge_method"] == ["S256"]
    assert asked["redirect_uri"] == [f"{gateway.url}/session/callback"]
    came = httpx.post(place, data={"sub": "s-ada"}).headers["location"]
    with browser() as other:
        assert other.get(came).status_code == 400, "of another browser"
    odd = web.get(f"{gateway.url}/session/provider").headers["location"]
    came_odd = httpx.post(odd, data={"sub": "s-ada"}).headers["location"]
    cookie = {"Cookie": b"gangline-in=\xe4"}
    assert httpx.get(came_odd, headers=cookie).status_code == 400, "not ASCII"
    assert web.get(came).status_code == 400, "used up"
    again = web.get(f"{gateway.url}/session/provider").headers["location"]
    came = httpx.post(again, data={"sub": "s-ada"}).headers["location"]
    assert web.get(came.replace("code=", "code=x")).status_code == 403
    assert web.get(f"{gateway.url}/session/callback?state=guess&code=1").status_code == 400
    denied = web.get(f"{gateway.url}/session/provider").headers["location"]
    came = httpx.post(denied, data={"action": "deny"}).headers["location"]
    assert gateway.who(web) is None


@pytest.mark.parametrize("way", ["groups", "session"])
def test_a_session_ends_within_five_minutes_of_a_removal(
    issuer: str, gateway: SignInGateway, web: httpx.Client, way: str
) -> None:
    person(issuer, "s-ben", preferred_username="ben", groups=["research"])
    sign_in(gateway, web, "s-ben")
    assert gateway.who(web) == "ben member research"
    try:
        gateway.ahead_s += CHECK_S
        assert gateway.who(web) == "ben member research"
        person(issuer, "s-ben", preferred_username="ben", groups=["research", "nlp"])
        gateway.ahead_s += CHECK_S
        assert gateway.who(web) == "ben member nlp,research,speech"
        if way == "groups":
            person(issuer, "s-ben", preferred_username="ben", groups=["guests"])
        else:
            httpx.post(f"{issuer}/users/s-ben/revoke-tokens").raise_for_status()
        assert gateway.who(web) == "ben member nlp,research,speech", "not asked again yet"
        gateway.ahead_s += CHECK_S
        assert gateway.who(web) is None
    finally:
        gateway.ahead_s = 0.0


def test_sign_ins_survive_a_restart_and_need_the_provider(
    issuer: str, gateway: SignInGateway, web: httpx.Client
) -> None:
    person(issuer, "s-ada", **ADA)
    sign_in(gateway, web, "s-ada")
    file = gateway.folder / "sign-ins.json"
    token = gateway.sessions.token(web.cookies["gangline-session"])
    assert token is not None
    ahead_s = 0.0

    def clock() -> float:
        return time.time() + ahead_s

    settings = gateway.logins.provider.settings
    away = settings.model_copy(update={"issuer": "http://127.0.0.1:9"})

    async def ask(logins: Logins) -> str | None:
        try:
            found = await logins.authenticate(token)
        except Exception as error:
            return str(getattr(error, "code", error))
        finally:
            await logins.provider.close()
        return found.name if found else None

    def after(seconds: float, known: Any) -> str | None:
        nonlocal ahead_s
        ahead_s = seconds
        return asyncio.run(ask(Logins(Provider(known, "s", clock), file, clock=clock)))

    assert after(0, settings) == "ada"
    assert after(CHECK_S + 1, away) == "ada", "its rights count for a while"
    assert after(301, away) == "provider-away"
    assert after(12 * 3600, settings) is None
    file.write_text(file.read_text().replace("sealed", "other"))
    assert after(0, settings) is None


def test_personal_access_tokens_of_a_person_follow_the_sign_in(
    issuer: str, gateway: SignInGateway, web: httpx.Client
) -> None:
    person(issuer, "s-mia", preferred_username="mia", groups=["nlp"])
    sign_in(gateway, web, "s-mia")
    now = datetime.now(UTC)
    text = "gl_pat_of-mia"
    gateway.made.take(
        AccessTokenSet(
            token_id="t-1", name="n", owner="mia", source="provider", role="member",
            teams=("nlp", "vision"), scope=TokenScope.READ, sha256=token_hash(text), made_at=now,
            expires_at=now + timedelta(days=365),
        )
    )  # fmt: skip
    assert gateway.who(text) == "mia member nlp"
    try:
        gateway.ahead_s = 31 * 86_400
        assert gateway.who(text) is None, "she did not sign in for a month"
    finally:
        gateway.ahead_s = 0.0
    person(issuer, "s-mia", preferred_username="mia", groups=[])
    sign_in(gateway, web, "s-mia")
    assert gateway.who(text) is None
    person(issuer, "s-max", preferred_username="mia", groups=["nlp"])
    sign_in(gateway, web, "s-max")
    assert gateway.who(text) is None, "another person has the name now"


def test_where_the_provider_offers_no_device_flow_the_terminal_learns_it(
    gateway: SignInGateway,
) -> None:
    answer = httpx.post(f"{gateway.url}/session/device")
    assert (answer.status_code, answer.json()["type"]) == (
        404,
        "urn:gangline:problem:no-device-flow",
    )
    answer = httpx.post(f"{gateway.url}/session/device/token", data={"handle": "guess"})
    assert answer.status_code == 410


Forge = Callable[[str, dict[str, Any], dict[str, Any]], str]


def _part(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def _with_hmac(_: str, claims: dict[str, Any], keys: dict[str, Any]) -> str:
    public = OctKey.import_key(json.dumps(keys["keys"][0]).encode())
    return jwt.encode({"alg": "HS256"}, claims, public, algorithms=["HS256"])


def _with_pem(_: str, claims: dict[str, Any], keys: dict[str, Any]) -> str:
    public = RSAKey.import_key(keys["keys"][0]).as_pem(private=False)
    signed = f"{_part({'alg': 'HS256'})}.{_part(claims)}"
    digest = hmac.new(public, signed.encode(), "sha256").digest()
    return f"{signed}.{base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"


def _by_another_key(token: str, claims: dict[str, Any], _: dict[str, Any]) -> str:
    header = json.loads(base64.urlsafe_b64decode(token.split(".", maxsplit=1)[0] + "=="))
    return jwt.encode(header, claims, RSAKey.generate_key(2048))


def _own_key_in_header(_: str, claims: dict[str, Any], __: dict[str, Any]) -> str:
    key = RSAKey.generate_key(2048)
    return jwt.encode({"alg": "RS256", "jwk": key.as_dict(private=False)}, claims, key)


FORGED: dict[str, Forge] = {
    "none": lambda token, *_: f"{_part({'alg': 'none'})}.{token.split('.')[1]}.",
    "None": lambda token, *_: f"{_part({'alg': 'None'})}.{token.split('.')[1]}.",
    "no signature": lambda token, *_: token.rpartition(".")[0] + ".",
    "HS256 with the public key": _with_hmac,
    "HS256 with the public key as PEM": _with_pem,
    "another key": _by_another_key,
    "a key of its own": _own_key_in_header,
    "changed claims": lambda token, claims, _: ".".join(
        [token.split(".")[0], _part({**claims, "sub": "root"}), token.split(".")[2]]
    ),
    "changed signature": lambda token, *_: (
        token[:-6] + ("AAAAAA" if token[-6:] != "AAAAAA" else "B")
    ),
    "no token": lambda *_: "",
    "text": lambda *_: "a.b.c",
}


def test_forged_tokens_are_refused(issuer: str, tmp_path: Path) -> None:
    person(issuer, "s-ada", **ADA)
    settings = settings_of(tmp_path, issuer, CLIENT)
    other_client = settings.model_copy(update={"client_id": "another"})
    keys = httpx.get(f"{issuer}/jwks").json()

    async def refused(judging: Awaitable[object]) -> bool:
        try:
            await judging
        except TokenRefusedError:
            return True
        return False

    async def judge_all() -> dict[str, bool]:
        now_s = time.time()
        provider = Provider(settings, "console-secret", lambda: now_s)
        granted = await _granted(provider, "the-nonce")
        token = granted.id_token
        claims = await provider.judge(token, "the-nonce")
        assert (claims["sub"], claims["aud"]) == ("s-ada", [CLIENT])
        found = {
            name: await refused(provider.judge(forge(token, claims, keys), "the-nonce"))
            for name, forge in FORGED.items()
        }
        found["another nonce"] = await refused(provider.judge(token, "other"))
        now_s += 86_400
        found["expired"] = await refused(provider.judge(token, "the-nonce"))
        now_s -= 2 * 86_400
        found["of tomorrow"] = await refused(provider.judge(token, "the-nonce"))
        now_s += 86_400
        foreign = Provider(other_client, "", lambda: now_s)
        found["another client"] = await refused(foreign.judge(token, "the-nonce"))
        await foreign.close()
        await provider.judge(token, "the-nonce")  # reads the provider's description again
        provider.settings = settings.model_copy(update={"issuer": f"{issuer}/"})
        found["another issuer"] = await refused(provider.judge(token, "the-nonce"))
        await provider.close()
        return found

    async def _granted(provider: Provider, nonce: str) -> Granted:
        verifier = secrets.token_urlsafe(32)
        place = await provider.authorization_url(
            verifier, state="s", nonce=nonce, redirect_uri="http://127.0.0.1/c"
        )
        async with httpx.AsyncClient() as client:
            came = (await client.post(place, data={"sub": "s-ada"})).headers["location"]
        (code,) = parse_qs(urlsplit(came).query)["code"]
        return await provider.exchange(code, "http://127.0.0.1/c", verifier)

    found = asyncio.run(judge_all())
    assert len(found) == 16
    assert [name for name, was_refused in found.items() if not was_refused] == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('issuer = "http://sso.example.org"\nclient_id = "a"', "issuer: must be an https:// URL"),
        ('issuer = "https://sso"\nclient_id = "a"', "groups: is missing"),
        ('issuer = "https://sso"\nclient_id = "a"\n[groups]\nx = {}', "must name teams"),
        ('issuer = "https://sso"\nclientid = "a"', "client_id: is missing"),
        ("issuer", "is no TOML"),
    ],
)
def test_a_wrong_file_names_its_field(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "oidc.toml"
    file.write_text(text)
    with pytest.raises(OidcFileError, match=message):
        read_settings(file)
