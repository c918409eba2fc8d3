"""A private file is there whole or as it was, and only its owner may read it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from gangline_service.private_file import write_private


@pytest.mark.parametrize("durable", [False, True])
def test_it_replaces_what_was_there_and_is_the_owners_alone(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "tokens.json"
    path.write_bytes(b"readable by all, and longer than what comes")
    path.chmod(0o644)
    write_private(path, b"new", durable=durable)
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_what_was_there_and_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tokens.json"
    write_private(path, b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_private(path, b"new", durable=True)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
