"""Snapshots in an object store: the newest three, apart by service, shard and installation."""

from __future__ import annotations

from pathlib import Path

import pytest

from gangline_bus.snapshot import FORMAT, SnapshotHeader, Snapshots
from gangline_quota.core.decide import Quota
from gangline_quota.core.snapshot import codec
from gangline_service.deciding import run_decider
from gangline_service.settings import DecidingSettings
from gangline_service.snapshots import KEPT, StoredSnapshots, ignored, open_snapshots
from gangline_storage import LocalStore, StoreError


def header(seq: int, *, shard: int = 0, state: int = 1) -> SnapshotHeader:
    return SnapshotHeader(
        format=FORMAT, state=state, form="f", service="quota", shard=shard, next_seq=seq,
        writer_epoch=1, offset=0, last="",
    )  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path)


def test_the_newest_three_are_kept_newest_first(store: LocalStore) -> None:
    kept = StoredSnapshots(store)
    for seq in (5, 999, 1000, 20_000, 30_000):
        kept.put(header(seq), b"%d" % seq)
    assert list(kept.newest("quota", 0)) == [b"30000", b"20000", b"1000"]
    assert len(list(store.list())) == KEPT


def test_those_of_a_longer_log_that_is_no_more_go(store: LocalStore) -> None:
    kept = StoredSnapshots(store)
    for seq in (20_000, 30_000, 40_000, 7, 25_000):
        kept.put(header(seq), b"%d" % seq)
    assert list(kept.newest("quota", 0)) == [b"25000", b"7"]


def test_the_newest_of_another_state_format_stays(store: LocalStore) -> None:
    kept = StoredSnapshots(store)
    for seq in (100, 200):
        kept.put(header(seq), b"old %d" % seq)
    for seq in (300, 400, 500, 600):
        kept.put(header(seq, state=2), b"new %d" % seq)
    assert list(kept.newest("quota", 0)) == [b"new 600", b"new 500", b"new 400", b"old 200"]
    kept.put(header(700), b"old 700")
    assert list(kept.newest("quota", 0)) == [b"old 700", b"new 600", b"old 200"]


def test_each_shard_service_and_installation_has_its_own(store: LocalStore) -> None:
    StoredSnapshots(store).put(header(7, shard=1), b"mine")
    assert list(StoredSnapshots(store).newest("quota", 1)) == [b"mine"]
    assert list(StoredSnapshots(store).newest("quota", 10)) == []
    assert list(StoredSnapshots(store).newest("quota", 0)) == []
    assert list(StoredSnapshots(store).newest("scheduler", 1)) == []
    assert list(StoredSnapshots(store, prefix="other.").newest("quota", 1)) == []


def test_without_a_store_there_are_none() -> None:
    make = open_snapshots("quota", DecidingSettings(), codec())
    assert make(ignored) is None


def test_each_shard_gets_snapshots_of_its_own(tmp_path: Path) -> None:
    settings = DecidingSettings(store_url=f"file://{tmp_path}")
    make = open_snapshots("quota", settings, codec())
    one, other = make(ignored), make(ignored)
    assert isinstance(one, Snapshots)
    assert one is not other


def test_a_url_that_names_no_store_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    settings = DecidingSettings(store_url="ftp://somewhere")
    with pytest.raises(StoreError):
        open_snapshots("quota", settings, codec())
    with pytest.raises(SystemExit) as ended:
        run_decider("quota", settings, Quota(), codec())
    assert ended.value.code == 2
    assert "GANGLINE_STORE_URL" in capsys.readouterr().err
