"""Personal access tokens: until when they count, and what their owner's rights leave of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gangline_gateway.access_tokens import AccessTokens, new_access_token, rights
from gangline_schemas.access import TokenScope
from gangline_schemas.events.access import AccessTokenSet
from gangline_schemas.secrets import holds_secret
from gangline_service.tokens import Principal, Role, TokenBook, TokenEntry, token_hash, write_tokens

NOW = datetime(2026, 11, 26, tzinfo=UTC)
TOKEN, ID = new_access_token()


def made(**fields: Any) -> AccessTokenSet:
    given: dict[str, Any] = {
        "token_id": ID, "name": "nightly", "owner": "ada", "source": "file", "role": "member",
        "teams": ("nlp",), "scope": TokenScope.SUBMIT, "sha256": token_hash(TOKEN), "made_at": NOW,
        "expires_at": NOW + timedelta(days=1), **fields,
    }  # fmt: skip
    return AccessTokenSet(**given)


def owner(role: Role, *teams: str) -> Principal:
    return Principal(name="ada", role=role, teams=frozenset(teams))


def test_a_token_counts_until_it_expires_or_is_revoked() -> None:
    now = NOW
    known = AccessTokens(lambda: now)
    assert known.valid(TOKEN) is None
    known.take(made())
    assert known.valid(TOKEN) == made()
    assert known.valid(TOKEN[:-1]) is None
    now = NOW + timedelta(days=1)
    assert known.valid(TOKEN) is None
    now = NOW
    known.take(made(revoked_at=NOW, revoked_by="root"))
    assert known.valid(TOKEN) is None
    assert [one.token_id for one in known.rows("ada")] == [ID]
    assert known.rows("bob") == []


def test_of_the_tokens_that_have_ended_the_last_ones_are_kept() -> None:
    known = AccessTokens(lambda: NOW, ended_kept=3)

    def one(number: int, **fields: Any) -> AccessTokenSet:
        return made(token_id=f"t-{number}", sha256=token_hash(str(number)), **fields)

    for number in range(4):
        known.take(one(number))
    for number in range(100, 200):
        known.take(one(number))
        known.take(one(number, revoked_at=NOW + timedelta(seconds=number - 200)))
    ids = {found.token_id for found in known.rows()}
    assert {"t-0", "t-1", "t-2", "t-3", "t-197", "t-198", "t-199"} <= ids
    assert len(ids) <= 4 + 2 * 3
    assert known.valid("0") == one(0)
    known.take(one(0, revoked_at=NOW))
    assert known.valid("0") is None


def test_its_text_is_found_in_logs_and_not_in_what_is_stored() -> None:
    assert holds_secret(TOKEN)
    assert TOKEN not in made().encode().decode()
    assert ID not in TOKEN


@pytest.mark.parametrize(
    ("token", "now", "expected"),
    [
        ({}, owner(Role.MEMBER, "nlp", "vision"), (Role.MEMBER, {"nlp"})),
        ({}, owner(Role.MEMBER, "vision"), None),
        ({}, owner(Role.ADMIN), (Role.MEMBER, {"nlp"})),
        ({}, None, None),
        ({"role": "admin", "teams": ()}, owner(Role.ADMIN), (Role.ADMIN, set())),
        ({"role": "admin", "teams": ()}, owner(Role.MEMBER, "nlp"), (Role.MEMBER, {"nlp"})),
    ],
    ids=["within", "team lost", "of an admin", "owner gone", "admin", "admin no more"],
)
def test_it_has_what_its_owner_has_now(
    token: dict[str, Any], now: Principal | None, expected: tuple[Role, set[str]] | None
) -> None:
    found = rights(made(**token), now)
    if expected is None:
        assert found is None
        return
    assert found is not None
    assert (found.role, found.teams) == expected
    assert (found.scope, found.via, found.token_id) == (TokenScope.SUBMIT, "access-token", ID)


def test_a_user_has_the_rights_of_all_tokens_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    entries = [
        TokenEntry.of("a", name="ada", role=Role.MEMBER, teams=["nlp"]),
        TokenEntry.of("b", name="ada", role=Role.MEMBER, teams=["vision"]),
        TokenEntry.of("c", name="root", role=Role.ADMIN),
        TokenEntry.of("d", name="svc", role=Role.SERVICE),
    ]
    write_tokens(path, entries)
    book = TokenBook.load(path)
    assert book.of_user("ada") == owner(Role.MEMBER, "nlp", "vision")
    assert book.of_user("svc") is None
    assert book.of_user("nobody") is None
    root = book.of_user("root")
    assert root is not None
    assert root.role is Role.ADMIN
