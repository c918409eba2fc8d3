"""What every object store promises: a local directory, a real S3 server, the simulator's store."""

import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gangline_storage import (
    AlreadyExists,
    InvalidKey,
    NotFound,
    ObjectStore,
    digest_bytes,
    digest_file,
)
from gangline_storage.pace import Pace
from support.fakes.s3_server import PART_BYTES, write_random_file
from support.fixtures.object_store import OUTLIVES_ITS_WRITER, keys, store

__all__ = ["store"]  # a fixture is used by being in this module

BIG = 2 * PART_BYTES + 12_345


class TestOneObject:
    def test_is_an_object_store(self, store: ObjectStore) -> None:
        assert isinstance(store, ObjectStore)

    def test_gives_back_what_was_put(self, store: ObjectStore) -> None:
        info = store.put("jobs/j1/a.bin", b"\x00\xffhello")
        assert (info.key, info.size_bytes) == ("jobs/j1/a.bin", 7)
        assert store.get("jobs/j1/a.bin") == b"\x00\xffhello"
        assert store.head("jobs/j1/a.bin").size_bytes == 7

    def test_a_later_put_replaces(self, store: ObjectStore) -> None:
        store.put("k", b"first, and longer")
        store.put("k", b"second")
        assert store.get("k") == b"second"
        assert store.head("k").size_bytes == 6

    def test_takes_a_stream(self, store: ObjectStore) -> None:
        assert store.put("stream", io.BytesIO(b"from a stream")).size_bytes == 13
        assert store.get("stream") == b"from a stream"

    def test_an_empty_object_is_an_object(self, store: ObjectStore, tmp_path: Path) -> None:
        store.put("empty", b"")
        assert store.get("empty") == b""
        assert store.head("empty").size_bytes == 0
        assert list(store.stream("empty")) == []
        assert store.get_range("empty", 0, 10) == b""
        store.fetch("empty", tmp_path / "out")
        assert (tmp_path / "out").read_bytes() == b""
        assert keys(store) == ["empty"]
        with pytest.raises(AlreadyExists):
            store.put("empty", b"", if_absent=True)

    @pytest.mark.parametrize(
        ("start", "length", "expected"),
        [
            (0, 3, b"012"),
            (2, 5, b"23456"),
            (7, 100, b"789"),
            (9, 1, b"9"),
            (10, 1, b""),
            (1000, 5, b""),
            (4, 0, b""),
        ],
    )
    def test_gives_a_range(
        self, store: ObjectStore, start: int, length: int, expected: bytes
    ) -> None:
        store.put("digits", b"0123456789")
        assert store.get_range("digits", start, length) == expected

    def test_refuses_a_negative_range(self, store: ObjectStore) -> None:
        store.put("digits", b"0123456789")
        with pytest.raises(ValueError, match="negative"):
            store.get_range("digits", -1, 2)
        with pytest.raises(ValueError, match="negative"):
            store.get_range("digits", 1, -2)

    def test_streams_in_chunks(self, store: ObjectStore) -> None:
        store.put("digits", b"0123456789")
        assert list(store.stream("digits", 4)) == [b"0123", b"4567", b"89"]
        assert list(store.stream("digits", 5)) == [b"01234", b"56789"]

    @pytest.mark.parametrize(
        ("start", "chunks"), [(3, [b"3456", b"789"]), (9, [b"9"]), (10, []), (11, [])]
    )
    def test_streams_from_a_byte_on(
        self, store: ObjectStore, start: int, chunks: list[bytes]
    ) -> None:
        store.put("digits", b"0123456789")
        assert list(store.stream("digits", 4, start=start)) == chunks

    def test_fetches_to_a_file_and_replaces_it(self, store: ObjectStore, tmp_path: Path) -> None:
        target = tmp_path / "target"
        target.write_bytes(b"what was there before, and longer")
        store.put("k", b"fetched")
        assert store.fetch("k", target).size_bytes == 7
        assert target.read_bytes() == b"fetched"
        store.fetch("k", target, link=True)
        assert target.read_bytes() == b"fetched"
        assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["target"]

    def test_a_missing_object_is_not_found(self, store: ObjectStore, tmp_path: Path) -> None:
        store.put("folder/there", b"x")
        for key in ("nowhere", "folder", "folder/there/below", "folder/other"):
            for ask in (
                lambda key=key: store.get(key),
                lambda key=key: store.get_range(key, 0, 1),
                lambda key=key: store.get_range(key, 0, 0),
                lambda key=key: store.stream(key),
                lambda key=key: store.head(key),
                lambda key=key: store.fetch(key, tmp_path / "out"),
            ):
                with pytest.raises(NotFound):
                    ask()
        assert not (tmp_path / "out").exists()

    def test_unicode_keys(self, store: ObjectStore) -> None:
        names = ["u/grüße +%2F&?#=", "u/日本語", "u/naïve space", "u/a~'()*!;:@$,"]
        for name in names:
            store.put(name, name.encode())
        assert keys(store, "u/") == sorted(names, key=str.encode)
        assert [store.get(name).decode() for name in names] == names
        assert store.delete_prefix("u/") == len(names)

    @pytest.mark.parametrize(
        "key", ["", "/a", "a/", "a//b", "..", "a/../b", "./a", "a\\b", "a\0b", "a\nb", "x" * 901]
    )
    def test_refuses_a_bad_key_everywhere(
        self, store: ObjectStore, key: str, tmp_path: Path
    ) -> None:
        (tmp_path / "file").write_bytes(b"x")
        calls: list[Callable[[], object]] = [
            lambda: store.put(key, b"x"),
            lambda: store.put(key, io.BytesIO(b"x"), if_absent=True),
            lambda: store.put_file(key, tmp_path / "file"),
            lambda: store.get(key),
            lambda: store.get_range(key, 0, 1),
            lambda: store.stream(key),
            lambda: store.fetch(key, tmp_path / "out"),
            lambda: store.head(key),
            lambda: store.delete(key),
        ]
        for call in calls:
            with pytest.raises(InvalidKey):
                call()
        assert keys(store) == []


class TestListing:
    @pytest.fixture
    def filled(self, store: ObjectStore) -> ObjectStore:
        for key in ("a/x", "a-b", "a.b", "a0", "a/y/z", "b", "a/.hidden", "jobs/j1/s", "jobs/j10"):
            store.put(key, key.encode())
        return store

    def test_is_in_the_order_of_bytes(self, filled: ObjectStore) -> None:
        assert keys(filled) == [
            *("a-b", "a.b", "a/.hidden", "a/x", "a/y/z", "a0", "b", "jobs/j1/s", "jobs/j10")
        ]
        assert all(info.size_bytes == len(info.key) for info in filled.list())

    @pytest.mark.parametrize(
        ("prefix", "expected"),
        [
            ("a/", ["a/.hidden", "a/x", "a/y/z"]),
            ("a/y", ["a/y/z"]),
            ("a.", ["a.b"]),
            ("jobs/j1", ["jobs/j1/s", "jobs/j10"]),
            ("jobs/j1/", ["jobs/j1/s"]),
            ("b", ["b"]),
            ("b/", []),
            ("none/such", []),
        ],
    )
    def test_by_prefix(self, filled: ObjectStore, prefix: str, expected: list[str]) -> None:
        assert keys(filled, prefix) == expected

    def test_refuses_a_bad_prefix(self, store: ObjectStore) -> None:
        for prefix in ("/", "../", "a//", "a/../b", "a\\"):
            with pytest.raises(InvalidKey):
                store.list(prefix)

    def test_more_than_one_request_of_s3_can_hold(self, store: ObjectStore) -> None:
        names = [f"many/{number:05d}" for number in range(1020)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda name: store.put(name, b"x"), names))
        assert keys(store, "many/") == names
        assert store.delete_prefix("many/") == len(names)
        assert keys(store) == []


class TestDelete:
    def test_is_idempotent(self, store: ObjectStore) -> None:
        store.put("a/b/c", b"x")
        store.delete("a/b/c")
        store.delete("a/b/c")
        store.delete("never/was")
        assert keys(store) == []
        with pytest.raises(NotFound):
            store.get("a/b/c")

    def test_leaves_the_neighbours(self, store: ObjectStore) -> None:
        for key in ("jobs/j1/a", "jobs/j1/b/c", "jobs/j10/a", "jobs/j1.txt"):
            store.put(key, b"x")
        assert store.delete_prefix("jobs/j1/") == 2
        assert keys(store) == ["jobs/j1.txt", "jobs/j10/a"]
        assert store.delete_prefix("jobs/j1/") == 0

    def test_a_folder_can_be_an_object_once_it_is_empty(self, store: ObjectStore) -> None:
        store.put("a/b/c", b"x")
        store.delete("a/b/c")
        store.put("a/b", b"now an object")
        assert store.get("a/b") == b"now an object"

    @pytest.mark.parametrize("prefix", ["", "/", "jobs", "jobs/j1", "../", "a/../"])
    def test_takes_whole_folders_only(self, store: ObjectStore, prefix: str) -> None:
        store.put("jobs/j1/a", b"x")
        with pytest.raises(InvalidKey):
            store.delete_prefix(prefix)
        assert keys(store) == ["jobs/j1/a"]


class TestLargeObjects:
    def test_a_file_of_several_parts(self, store: ObjectStore, tmp_path: Path) -> None:
        path = tmp_path / "big"
        data = write_random_file(path, BIG)
        assert store.put_file("big", path).size_bytes == BIG
        assert store.head("big").size_bytes == BIG
        assert digest_bytes(store.get("big")) == digest_bytes(data) == digest_file(path)
        assert store.get_range("big", PART_BYTES - 3, 6) == data[PART_BYTES - 3 : PART_BYTES + 3]
        store.fetch("big", tmp_path / "again")
        assert digest_file(tmp_path / "again") == digest_bytes(data)

    @pytest.mark.parametrize("size_bytes", [PART_BYTES - 1, PART_BYTES, PART_BYTES + 1])
    def test_a_stream_around_the_size_of_a_part(
        self, store: ObjectStore, tmp_path: Path, size_bytes: int
    ) -> None:
        data = write_random_file(tmp_path / "source", size_bytes)
        with (tmp_path / "source").open("rb") as stream:
            assert store.put("sized", stream).size_bytes == size_bytes
        assert store.get("sized") == data

    @pytest.mark.parametrize("store", OUTLIVES_ITS_WRITER, indirect=True)
    def test_a_file_is_read_no_faster_than_a_pace_allows(
        self, store: ObjectStore, tmp_path: Path
    ) -> None:
        path = tmp_path / "big"
        data = write_random_file(path, BIG)
        waits: list[float] = []
        pace = Pace(1e6, clock=lambda: 0.0, pause=waits.append)
        assert store.put_file("big", path, pace=pace).size_bytes == BIG
        assert waits == sorted(waits)
        assert waits[-1] == pytest.approx(BIG / 1e6)
        assert digest_bytes(store.get("big")) == digest_bytes(data)

    def test_put_if_absent(self, store: ObjectStore, tmp_path: Path) -> None:
        path = tmp_path / "big"
        data = write_random_file(path, BIG)
        store.put_file("big", path, if_absent=True)
        write_random_file(path, BIG, seed=2)
        with pytest.raises(AlreadyExists):
            store.put_file("big", path, if_absent=True)
        assert digest_bytes(store.get("big")) == digest_bytes(data)
        assert store.remove_partial(older_than_s=0) == 0  # the loser's parts were given back

    def test_a_source_that_fails_leaves_nothing(self, store: ObjectStore) -> None:
        class Failing(io.RawIOBase):
            given = 0

            def read(self, size: int = -1) -> bytes:
                if self.given >= BIG:
                    raise OSError("the source broke")
                self.given += size
                return b"x" * size

        with pytest.raises(Exception, match="the source broke"):
            store.put("torn", Failing())  # type: ignore[arg-type]
        with pytest.raises(NotFound):
            store.head("torn")
        assert keys(store) == []
        assert store.remove_partial(older_than_s=0) == 0
