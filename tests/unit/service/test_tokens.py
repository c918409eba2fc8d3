"""Tokens: only hashes on disk, only the owner reads them, changes count at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from gangline_service.tokens import (
    Role,
    TokenBook,
    TokenEntry,
    TokenFileError,
    new_token,
    write_tokens,
)


def test_a_token_says_who_holds_it(tmp_path: Path) -> None:
    path, admin, member = tmp_path / "tokens.json", new_token(), new_token()
    write_tokens(
        path,
        [
            TokenEntry.of(admin, name="root", role=Role.ADMIN),
            TokenEntry.of(member, name="ann", role=Role.MEMBER, teams=["nlp"]),
        ],
    )
    book = TokenBook.load(path)
    found = book.authenticate(member)
    assert found is not None
    assert (found.name, found.all_teams, found.reads("nlp"), found.reads("cv")) == (
        "ann",
        False,
        True,
        False,
    )
    everyone = book.authenticate(admin)
    assert everyone is not None
    assert everyone.reads("cv")
    assert admin not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    for wrong in ("", "x", admin + "x", admin[:-1], "x" * 10_000, "\ud800"):
        assert book.authenticate(wrong) is None


def test_a_changed_file_counts_at_once_and_a_bad_one_lets_nobody_in(tmp_path: Path) -> None:
    path, old, new = tmp_path / "tokens.json", new_token(), new_token()
    write_tokens(path, [TokenEntry.of(old, name="old", role=Role.ADMIN)])
    book = TokenBook.load(path)
    write_tokens(path, [TokenEntry.of(new, name="new", role=Role.ADMIN)])
    assert book.authenticate(old) is None
    assert book.authenticate(new) is not None
    path.chmod(0o640)
    assert book.authenticate(new) is None
    path.chmod(0o600)
    assert book.authenticate(new) is not None
    path.write_text("{")
    assert book.authenticate(new) is None
    path.unlink()
    assert book.authenticate(new) is None
    write_tokens(path, [TokenEntry.of(new, name="new", role=Role.ADMIN)])
    assert book.authenticate(new) is not None


@pytest.mark.parametrize(
    ("content", "mode", "message"),
    [
        ('{"tokens": []}', 0o644, "chmod 600"),
        ("{}", 0o600, "tokens"),
        (
            '{"tokens": [{"name": "a", "role": "king", "sha256": "' + "0" * 64 + '"}]}',
            0o600,
            "role",
        ),
        ('{"tokens": [{"name": "a", "role": "admin", "sha256": "secret"}]}', 0o600, "sha256"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_the_way_out(
    tmp_path: Path, content: str, mode: int, message: str
) -> None:
    path = tmp_path / "tokens.json"
    path.write_text(content)
    path.chmod(mode)
    with pytest.raises(TokenFileError, match=message) as refusal:
        TokenBook.load(path)
    assert "secret" not in str(refusal.value)


def test_a_link_is_refused(tmp_path: Path) -> None:
    real = tmp_path / "real.json"
    write_tokens(real, [])
    (tmp_path / "link.json").symlink_to(real)
    with pytest.raises(TokenFileError):
        TokenBook.load(tmp_path / "link.json")
