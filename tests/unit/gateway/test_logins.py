"""Sign-ins between two checks: what ends them, and which claims give rights."""

from __future__ import annotations

import asyncio
import contextlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gangline_gateway.oidc.logins import CHECK_S, TRUST_S, Logins
from gangline_gateway.oidc.provider import MOST_BYTES, Granted, Provider, ProviderAwayError
from gangline_gateway.oidc.settings import GroupRights, OidcSettings
from gangline_gateway.problems import ProblemError

FIRST = Granted("access", "refresh", "id")
NOW_S = 1_800_000_000.0
ADA = {"sub": "s-ada", "preferred_username": "ada"}


def settings_with(**groups: str) -> OidcSettings:
    given = {name: GroupRights(teams=(team,)) for name, team in groups.items()}
    return OidcSettings(issuer="https://sso", client_id="c", groups=given)


class GroupsInIdToken:
    """A provider whose userinfo names no groups."""

    def __init__(self, settings: OidcSettings) -> None:
        self.settings = settings
        self.asked = asyncio.Event()
        self.answers = asyncio.Event()

    async def claims(self, _: Granted, __: str | None) -> dict[str, Any]:
        return {**ADA, "groups": ["research"]}

    async def userinfo(self, _: str) -> dict[str, Any]:
        return ADA

    async def refresh(self, _: str) -> Granted:
        self.asked.set()
        await self.answers.wait()
        return FIRST

    async def revoke(self, _: str) -> None:
        return


@pytest.fixture
def provider() -> Any:
    return GroupsInIdToken(settings_with(research="nlp"))


def test_groups_of_the_id_token_count_at_later_checks(provider: Any) -> None:
    now_s = NOW_S

    async def both() -> list[Any]:
        nonlocal now_s
        logins = Logins(provider, clock=lambda: now_s)
        provider.answers.set()
        token, first = await logins.begin(FIRST, None)
        now_s += CHECK_S
        return [first, await logins.authenticate(token)]

    first, later = asyncio.run(both())
    assert first.teams == {"nlp"}
    assert later == first


def test_a_sign_in_that_is_ended_during_its_check_stays_ended(provider: Any) -> None:
    now_s = NOW_S

    async def end_meanwhile() -> list[Any]:
        nonlocal now_s
        logins = Logins(provider, clock=lambda: now_s)
        token, _ = await logins.begin(FIRST, None)
        now_s += CHECK_S
        check = asyncio.create_task(logins.authenticate(token))
        await provider.asked.wait()
        await logins.end(token)
        provider.answers.set()
        return [await check, await logins.authenticate(token)]

    assert asyncio.run(end_meanwhile()) == [None, None]


def test_a_check_whose_request_has_gone_keeps_the_new_refresh_token(
    provider: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, used = NOW_S, []

    async def once(refresh: str) -> Granted:
        used.append(refresh)
        provider.asked.set()
        await provider.answers.wait()
        return Granted("access", f"refresh-{len(used)}", "id")

    async def leave() -> None:
        nonlocal now_s
        monkeypatch.setattr(provider, "refresh", once)
        logins = Logins(provider, clock=lambda: now_s)
        token, _ = await logins.begin(FIRST, None)
        now_s += CHECK_S
        check = asyncio.create_task(logins.authenticate(token))
        await provider.asked.wait()
        check.cancel()  # as the stream of a page that is closed
        later = asyncio.create_task(logins.authenticate(token))
        await asyncio.wait({check})
        provider.answers.set()
        assert await later is not None
        now_s += CHECK_S
        assert await logins.authenticate(token) is not None

    asyncio.run(leave())
    assert used == ["refresh", "refresh-1"]


def test_a_clock_that_is_put_back_delays_no_check(provider: Any) -> None:
    now_s = NOW_S + 86_400

    async def put_back() -> object:
        nonlocal now_s
        logins = Logins(provider, clock=lambda: now_s)
        provider.answers.set()
        token, _ = await logins.begin(FIRST, None)
        now_s = NOW_S
        return await logins.authenticate(token)

    assert asyncio.run(put_back()) is not None
    assert provider.asked.is_set(), "the provider was asked"


def test_a_clock_that_is_put_back_keeps_no_provider_away(
    provider: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, away = NOW_S + 86_400, True

    async def answers(_: str) -> Granted:
        if away:
            raise ProviderAwayError("timeout")
        return FIRST

    async def put_back() -> object:
        nonlocal now_s, away
        logins = Logins(provider, clock=lambda: now_s)
        monkeypatch.setattr(provider, "refresh", answers)
        token, _ = await logins.begin(FIRST, None)
        now_s += TRUST_S
        with pytest.raises(ProblemError):
            await logins.authenticate(token)
        now_s, away = NOW_S, False
        return await logins.authenticate(token)

    assert asyncio.run(put_back()) is not None

    async def asks(*_: str) -> dict[str, Any]:
        if away:
            raise ProviderAwayError("timeout")
        return {"issuer": "https://sso"}

    async def ask_again() -> object:
        nonlocal now_s, away
        asked = Provider(settings_with(research="nlp"), "", lambda: now_s)
        monkeypatch.setattr(asked, "_ask", asks)
        now_s, away = NOW_S + 86_400, True
        with pytest.raises(ProviderAwayError):
            await asked.userinfo("access")
        now_s, away = NOW_S, False
        return await asked.userinfo("access")

    assert asyncio.run(ask_again()) is None, "it offers no userinfo, and said so"


def test_a_person_with_another_name_signs_in_again(provider: Any, tmp_path: Path) -> None:
    """The rights of the old name would stay as they were, whatever the provider says later."""
    now_s, claims = NOW_S, {**ADA, "groups": ["research"]}
    made_at = datetime.fromtimestamp(NOW_S + 1, UTC)

    async def given(*_: object) -> dict[str, Any]:
        return claims

    async def rename(how: str) -> tuple[object, object, object]:
        nonlocal now_s, claims
        provider.claims = given
        provider.answers.set()
        logins = Logins(provider, tmp_path / "sign-ins.json", clock=lambda: now_s)
        token, _ = await logins.begin(FIRST, None)
        claims = {**claims, "preferred_username": "countess"}
        if how == "check":
            now_s += CHECK_S
            return await logins.authenticate(token), logins.known("ada", made_at), None
        _, principal = await logins.begin(FIRST, None)
        return await logins.authenticate(token), logins.known("ada", made_at), principal.name

    found = []
    for how in ("check", "sign-in"):
        claims = {**ADA, "groups": ["research"]}
        found.append(asyncio.run(rename(how)))
    assert found == [(None, None, None), (None, None, "countess")]


@pytest.mark.parametrize("age_s", [CHECK_S, TRUST_S])
def test_a_provider_that_hangs_delays_one_request_and_not_each(
    provider: Any, monkeypatch: pytest.MonkeyPatch, age_s: float
) -> None:
    now_s, asked = NOW_S, 0

    async def hangs(_: str) -> Granted:
        nonlocal now_s, asked
        now_s, asked = now_s + 10, asked + 1
        raise ProviderAwayError("timeout")

    async def ask_often() -> list[str]:
        nonlocal now_s
        monkeypatch.setattr(provider, "refresh", hangs)
        logins = Logins(provider, clock=lambda: now_s)
        token, _ = await logins.begin(FIRST, None)
        now_s += age_s
        tries = [logins.authenticate(token) for _ in range(4)]
        found = await asyncio.gather(*tries, return_exceptions=True)
        return [one.code if isinstance(one, ProblemError) else "ok" for one in found]

    assert set(asyncio.run(ask_often())) == {"ok" if age_s == CHECK_S else "provider-away"}
    assert asked == 1


def test_the_newest_refresh_token_is_kept_when_the_provider_fails_after_it(
    provider: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, used = NOW_S, []

    async def once(refresh: str) -> Granted:
        used.append(refresh)
        return Granted("access", f"refresh-{len(used)}", "")

    async def fails(_: str) -> dict[str, Any]:
        raise ProviderAwayError("status 502")

    async def check_twice() -> None:
        nonlocal now_s
        monkeypatch.setattr(provider, "refresh", once)
        monkeypatch.setattr(provider, "userinfo", fails)
        logins = Logins(provider, clock=lambda: now_s)
        token, _ = await logins.begin(FIRST, None)
        for _ in range(2):
            now_s += CHECK_S
            with contextlib.suppress(ProblemError):
                await logins.authenticate(token)

    asyncio.run(check_twice())
    assert used == ["refresh", "refresh-1"]


def test_sign_ins_do_not_wait_for_each_other_at_a_provider_that_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s, asked = NOW_S, 0

    async def hangs(*_: str) -> dict[str, Any]:
        nonlocal now_s, asked
        now_s, asked = now_s + 10, asked + 1
        raise ProviderAwayError("timeout")

    async def ask(times: int) -> list[type]:
        tries = [asked_one.userinfo("access") for _ in range(times)]
        return [type(one) for one in await asyncio.gather(*tries, return_exceptions=True)]

    asked_one = Provider(settings_with(research="nlp"), "", lambda: now_s)
    monkeypatch.setattr(asked_one, "_ask", hangs)
    assert asyncio.run(ask(9)) == [ProviderAwayError] * 9
    assert asked == 1
    now_s += 5
    assert asyncio.run(ask(1)) == [ProviderAwayError]
    assert asked == 2, "it is asked again later"


def test_an_answer_of_the_provider_is_read_up_to_its_limit() -> None:
    async def ask(size: int) -> str:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + b" " * size + b"{}")
            with contextlib.suppress(ConnectionError):
                await writer.drain()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1")
        port = server.sockets[0].getsockname()[1]
        settings = settings_with(research="nlp").model_copy(
            update={"issuer": f"http://127.0.0.1:{port}"}
        )
        asked = Provider(settings, "")
        try:
            await asked.userinfo("access")
        except ProviderAwayError as error:
            return str(error)
        finally:
            await asked.close()
            server.close()
        return ""

    assert "issuer None" in asyncio.run(ask(MOST_BYTES - 2))
    assert "above 1,048,576 bytes" in asyncio.run(ask(MOST_BYTES - 1))


def test_checks_of_many_sign_ins_write_the_file_once(
    provider: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, written = NOW_S, []
    file = tmp_path / "sign-ins.json"

    def write(path: Path, content: bytes) -> None:
        written.append(content)
        path.write_bytes(content)

    async def check_all() -> tuple[Logins, int]:
        nonlocal now_s
        provider.answers.set()
        logins = Logins(provider, file, clock=lambda: now_s)
        tokens = [(await logins.begin(FIRST, None))[0] for _ in range(9)]
        before = len(written)
        now_s += CHECK_S
        await asyncio.gather(*map(logins.authenticate, tokens))
        return logins, before

    monkeypatch.setattr("gangline_gateway.oidc.logins.write_private", write)
    logins, before = asyncio.run(check_all())
    assert before == 9, "a new sign-in is written at once"
    logins.close()
    logins.close()
    assert len(written) == 10
    assert file.read_text().count(f'"checked_s":{now_s}') == 9


def test_people_who_did_not_sign_in_for_a_year_are_forgotten(
    provider: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    now_s, file = NOW_S, tmp_path / "sign-ins.json"

    async def sign_in(name: str) -> None:
        async def claims(*_: object) -> dict[str, Any]:
            return {"sub": name, "preferred_username": name, "groups": ["research"]}

        monkeypatch.setattr(provider, "claims", claims)
        await Logins(provider, file, clock=lambda: now_s).begin(FIRST, None)

    found = []
    for name in ("ada", "bob", "cy"):
        asyncio.run(sign_in(name))
        found.append(sorted(json.loads(file.read_text())["people"]))
        now_s += 200 * 86_400
    assert found == [["ada"], ["ada", "bob"], ["bob", "cy"]]


def test_rights_are_those_of_the_settings_of_now(provider: Any, tmp_path: Path) -> None:
    file = tmp_path / "sign-ins.json"
    token, _ = asyncio.run(Logins(provider, file, clock=lambda: NOW_S).begin(FIRST, None))
    made_at = datetime.fromtimestamp(NOW_S, UTC)
    found = []
    for settings in (settings_with(research="speech"), settings_with(others="nlp")):
        later: Any = GroupsInIdToken(settings)
        logins = Logins(later, file, clock=lambda: NOW_S)
        found += [logins.known("ada", made_at), asyncio.run(logins.authenticate(token))]
    teams = [None if one is None else set(one.teams) for one in found]
    assert teams == [{"speech"}, {"speech"}, None, None]
    taken = Logins(provider, file, lambda name: name == "ada", lambda: NOW_S)
    assert taken.known("ada", made_at) is None, "the file of tokens has another ada now"
