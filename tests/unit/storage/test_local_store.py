"""What only a directory can get wrong: links, folders, modes, a full disk."""

import io
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gangline_storage import AlreadyExists, InvalidKey, LocalStore, NotFound, StoreError, StoreFull


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret").write_bytes(b"secret")
    return folder


class TestSymbolicLinks:
    def test_to_a_folder_are_not_followed(self, store: LocalStore, outside: Path) -> None:
        (store.root / "jobs").mkdir()
        (store.root / "jobs" / "link").symlink_to(outside)
        key = "jobs/link/secret"
        for ask in (store.get, store.head, store.stream):
            with pytest.raises(NotFound):
                ask(key)
        store.delete(key)
        for if_absent in (False, True):
            with pytest.raises(InvalidKey, match="symbolic link"):
                store.put(key, b"overwritten", if_absent=if_absent)
        with pytest.raises(InvalidKey, match="symbolic link"):
            store.put("jobs/link/new", b"new")
        assert list(store.list()) == []
        assert store.delete_prefix("jobs/") == 0
        assert store.delete_prefix("jobs/link/") == 0
        assert [path.read_bytes() for path in outside.iterdir()] == [b"secret"]

    def test_to_a_file_are_not_followed(self, store: LocalStore, outside: Path) -> None:
        (store.root / "link").symlink_to(outside / "secret")
        with pytest.raises(NotFound):
            store.get("link")
        with pytest.raises(InvalidKey):
            store.put("link", b"x", if_absent=True)
        assert list(store.list()) == []
        store.put("link", b"replaces the link itself")
        assert store.get("link") == b"replaces the link itself"
        assert (outside / "secret").read_bytes() == b"secret"

    def test_of_the_root_itself_are_resolved_once(self, tmp_path: Path) -> None:
        (tmp_path / "real").mkdir()
        (tmp_path / "link").symlink_to(tmp_path / "real")
        store = LocalStore(tmp_path / "link")
        assert store.root == tmp_path / "real"
        store.put("k", b"x")
        assert (tmp_path / "real" / "k").read_bytes() == b"x"


class TestNames:
    def test_a_folder_is_no_object_and_takes_none(self, store: LocalStore) -> None:
        store.put("a/b", b"x")
        for if_absent in (False, True):
            with pytest.raises(InvalidKey, match="folder"):
                store.put("a", b"x", if_absent=if_absent)
            with pytest.raises(InvalidKey, match="part that is an object"):
                store.put("a/b/c", b"x", if_absent=if_absent)
        store.delete("a")
        assert store.get("a/b") == b"x"
        assert store.remove_partial(older_than_s=0) == 0

    def test_a_fifo_is_not_waited_for(self, store: LocalStore) -> None:
        os.mkfifo(store.root / "pipe")
        with pytest.raises(NotFound):
            store.get("pipe")
        assert list(store.list()) == []
        with pytest.raises(StoreError, match="not a regular file"):
            store.put_file("k", store.root / "pipe")

    def test_objects_are_their_owner_s_alone(self, store: LocalStore) -> None:
        store.put("jobs/j1/k", b"x")
        assert stat.S_IMODE((store.root / "jobs/j1/k").stat().st_mode) == 0o600
        assert stat.S_IMODE((store.root / "jobs").stat().st_mode) == 0o700
        assert stat.S_IMODE(store.root.stat().st_mode) == 0o700

    def test_empty_folders_go_with_their_last_object(self, store: LocalStore) -> None:
        store.put("a/b/c/k", b"x")
        store.put("a/other", b"x")
        store.delete("a/b/c/k")
        assert sorted(path.name for path in (store.root / "a").iterdir()) == ["other"]
        store.delete("a/other")
        assert list(store.root.iterdir()) == []

    def test_the_root_must_be_absolute_and_a_directory(self, tmp_path: Path) -> None:
        with pytest.raises(StoreError, match="not absolute"):
            LocalStore(Path("relative"))
        (tmp_path / "file").write_bytes(b"x")
        with pytest.raises(StoreError, match="root"):
            LocalStore(tmp_path / "file")


class TestAnotherFolderInItsPlace:
    """As where the store's disk is not mounted any more."""

    @pytest.mark.parametrize("empty", [True, False], ids=["empty", "gone"])
    def test_lacks_no_object_and_takes_none(self, store: LocalStore, *, empty: bool) -> None:
        store.put("a/k", b"x")
        elsewhere = store.root.rename(store.root.with_name("elsewhere"))
        if empty:
            store.root.mkdir()
        asks = (
            lambda: store.get("a/k"),
            lambda: store.head("a/k"),
            lambda: store.put("a/k", b"y"),
            lambda: store.delete("a/k"),
            lambda: [*store.list("a/")],
        )
        for ask in asks:
            with pytest.raises(StoreError, match="another folder than at the start") as refused:
                ask()
            assert not isinstance(refused.value, NotFound)
        if empty:
            store.root.rmdir()  # nothing was put there
        elsewhere.rename(store.root)
        assert store.get("a/k") == b"x"

    def test_is_taken_where_the_first_one_was_empty(self, store: LocalStore) -> None:
        """The mount came after the service."""
        with pytest.raises(NotFound):
            store.get("a/k")
        store.root.rename(store.root.with_name("below"))
        LocalStore(store.root).put("a/k", b"x")
        assert store.get("a/k") == b"x"

    def test_is_taken_where_a_look_at_the_first_one_mounts_it(
        self, store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As by an automounter."""
        mount = tmp_path / "mount"
        LocalStore(mount).put("a/k", b"x")
        entries = Path.iterdir

        def mounting(folder: Path) -> Iterator[Path]:
            if mount.exists():
                store.root.rmdir()
                mount.rename(store.root)
            return entries(folder)

        monkeypatch.setattr(Path, "iterdir", mounting)
        assert store.get("a/k") == b"x"


class TestLinking:
    def test_shares_the_bytes_when_allowed(self, store: LocalStore, tmp_path: Path) -> None:
        source = tmp_path / "source"
        source.write_bytes(b"shard")
        store.put_file("copied", source)
        store.put_file("linked", source, link=True)
        assert not (store.root / "copied").samefile(source)
        assert (store.root / "linked").samefile(source)
        store.put_file("linked", source, link=True)  # over a link to the same file
        with pytest.raises(AlreadyExists):
            store.put_file("linked", source, link=True, if_absent=True)
        store.put_file("first", source, link=True, if_absent=True)
        store.fetch("linked", tmp_path / "out", link=True)
        store.fetch("linked", tmp_path / "out", link=True)
        assert (tmp_path / "out").samefile(source)
        store.fetch("linked", tmp_path / "copy")
        assert not (tmp_path / "copy").samefile(source)
        assert store.remove_partial(older_than_s=0) == 0
        assert sorted(p.name for p in tmp_path.iterdir()) == ["copy", "out", "source", "store"]

    def test_copies_where_it_cannot_link(
        self, store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = tmp_path / "source"
        source.write_bytes(b"shard")

        def refuse(*_args: object, **_kwargs: object) -> None:
            raise OSError(18, "Invalid cross-device link")

        monkeypatch.setattr("gangline_storage.local.os.link", refuse)
        store.put_file("k", source, link=True)
        store.fetch("k", tmp_path / "out", link=True)
        assert (store.root / "k").read_bytes() == (tmp_path / "out").read_bytes() == b"shard"
        assert not (store.root / "k").samefile(source)

    def test_an_overwritten_object_leaves_the_fetched_link_alone(
        self, store: LocalStore, tmp_path: Path
    ) -> None:
        store.put("k", b"old")
        store.fetch("k", tmp_path / "out", link=True)
        store.put("k", b"new")
        assert (tmp_path / "out").read_bytes() == b"old"

    def test_a_missing_source(self, store: LocalStore, tmp_path: Path) -> None:
        with pytest.raises(StoreError, match="No such file"):
            store.put_file("k", tmp_path / "none")
        with pytest.raises(StoreError, match="not a regular file"):
            store.put_file("k", tmp_path)


class TestFullDisk:
    SCRIPT = """
import resource, sys
from collections.abc import Iterator
from pathlib import Path
from gangline_storage import LocalStore, StoreFull
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
store = LocalStore(Path(sys.argv[1]))
store.put("small", b"x" * 50_000)
for if_absent in (False, True):
    try:
        store.put("small" if not if_absent else "large", b"y" * 150_000, if_absent=if_absent)
    except StoreFull as error:
        print(error)
"""

    def test_the_kernel_s_limit_leaves_the_old_object(self, store: LocalStore) -> None:
        """A limit of the file size, which stops `os.write` short before it refuses."""
        run = subprocess.run(
            [sys.executable, "-c", self.SCRIPT, str(store.root)],
            check=True,
            capture_output=True,
            text=True,
        )
        assert run.stdout.count("no room") == 2
        assert [(info.key, info.size_bytes) for info in store.list()] == [("small", 50_000)]
        assert store.get("small") == b"x" * 50_000
        assert store.remove_partial(older_than_s=0) == 0

    def test_no_space_left_is_said_so(
        self, store: LocalStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        store.put("k", b"old")

        def full(_fd: int, _data: object) -> int:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "write", full)
        with pytest.raises(StoreFull, match=r"put k: no room \(No space left on device\)"):
            store.put("k", b"new")
        with pytest.raises(StoreFull, match="fetch k"):
            store.fetch("k", tmp_path / "out")
        monkeypatch.undo()
        assert store.get("k") == b"old"
        assert not (tmp_path / "out").exists()

    def test_short_writes_are_carried_on(
        self, store: LocalStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = os.write
        monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:7]))
        store.put("k", bytes(range(256)))
        store.put("stream", io.BytesIO(bytes(range(256))))
        monkeypatch.undo()
        assert store.get("k") == store.get("stream") == bytes(range(256))

    def test_a_folder_that_is_not_there_is_named(self, store: LocalStore, tmp_path: Path) -> None:
        store.put("k", b"x")
        with pytest.raises(StoreError, match=r"fetch k to .*/no/such/folder/out"):
            store.fetch("k", tmp_path / "no/such/folder/out")


def test_a_put_is_synced_before_it_is_named(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    for name in ("fsync", "rename", "link"):
        real = getattr(os, name)

        def note(*args: object, _real: object = real, _name: str = name, **more: object) -> object:
            calls.append(_name)
            return _real(*args, **more)  # type: ignore[operator]

        monkeypatch.setattr(os, name, note)
    store.put("k", b"x")
    assert calls == ["fsync", "rename", "fsync"]
    calls.clear()
    store.put("new/k", b"x", if_absent=True)
    assert calls == ["fsync", "fsync", "link", "fsync"]  # the first is of the new folder's parent
