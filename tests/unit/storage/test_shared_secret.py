"""A secret of the store: the same for all, made once, and never a damaged one."""

from __future__ import annotations

from pathlib import Path

import pytest

from gangline_storage.errors import StoreError
from gangline_storage.local import LocalStore
from gangline_storage.shared_secret import SharedSecret

KEY = "agents/some-secret"


def test_all_processes_of_a_store_have_the_same_secret(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    first, second = SharedSecret(store, KEY), SharedSecret(LocalStore(store.root), KEY)
    assert first.value() == second.value() == first.value()
    assert len(first.value()) == 32
    assert SharedSecret(store, "agents/other").value() != first.value()
    assert SharedSecret(LocalStore(tmp_path / "other"), KEY).value() != first.value()


def test_a_secret_that_is_none_is_refused(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    store.put(KEY, b"short")
    with pytest.raises(StoreError, match="delete it"):
        SharedSecret(store, KEY).value()
