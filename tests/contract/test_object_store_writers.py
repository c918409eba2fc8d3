"""What every object store promises when many write to it at once, and when a writer is killed."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gangline_storage import AlreadyExists, LocalStore, NotFound, ObjectStore, digest_bytes
from gangline_storage.s3 import S3Store
from support.fakes.s3_server import PART_BYTES, S3Server, write_random_file
from support.fixtures.object_store import OUTLIVES_ITS_WRITER, keys, store

__all__ = ["store"]  # a fixture is used by being in this module


class TestConcurrency:
    def test_put_if_absent_has_one_winner(self, store: ObjectStore) -> None:
        rounds, writers = 40, 8
        start = threading.Barrier(writers, timeout=60)

        def write(me: int) -> list[bool]:
            won = []
            for number in range(rounds):
                start.wait()
                try:
                    store.put(f"race/{number}", b"%d" % me * 1000, if_absent=True)
                except AlreadyExists:
                    won.append(False)
                else:
                    won.append(True)
            return won

        with ThreadPoolExecutor(writers) as pool:
            results = list(pool.map(write, range(writers)))
        for number in range(rounds):
            winners = [me for me in range(writers) if results[me][number]]
            assert len(winners) == 1
            assert store.get(f"race/{number}") == b"%d" % winners[0] * 1000

    def test_a_large_put_if_absent_has_one_winner(self, store: ObjectStore, tmp_path: Path) -> None:
        rounds, writers = 3, 4
        paths = [tmp_path / f"w{me}" for me in range(writers)]
        digests = [
            digest_bytes(write_random_file(path, PART_BYTES + 7, seed=me))
            for me, path in enumerate(paths)
        ]
        start = threading.Barrier(writers, timeout=60)

        def write(me: int, key: str) -> bool:
            start.wait()
            try:
                store.put_file(key, paths[me], if_absent=True)
            except AlreadyExists:
                return False
            return True

        with ThreadPoolExecutor(writers) as pool:
            for number in range(rounds):
                key = f"race/{number}"
                won = list(pool.map(write, range(writers), [key] * writers))
                assert won.count(True) == 1
                assert digest_bytes(store.get(key)) == digests[won.index(True)]
        assert store.remove_partial(older_than_s=0) == 0

    def test_a_reader_sees_one_version_whole(self, store: ObjectStore) -> None:
        size = 300_000
        store.put("versions", b"0" * size)
        done = threading.Event()

        def rewrite() -> None:
            try:
                for number in range(30):
                    store.put("versions", b"%d" % (number % 10) * size)
            finally:
                done.set()

        with ThreadPoolExecutor(1) as pool:
            writer = pool.submit(rewrite)
            reads = 0
            while not done.is_set() or reads < 5:
                data = store.get("versions")
                assert len(data) == size
                assert data == data[:1] * size
                reads += 1
            writer.result()

    def test_puts_and_deletes_in_one_folder(self, store: ObjectStore) -> None:
        """A delete that empties the folder must not take a put's folder away."""

        def churn(me: int) -> None:
            for _ in range(60):
                store.put(f"churn/{me}", b"x")
                store.delete(f"churn/{me}")

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(churn, range(4)))
        assert keys(store) == []


class TestCrash:
    WRITER = """
import io, os, sys
from pathlib import Path
from gangline_storage import LocalStore
from gangline_storage.s3 import S3Store
from gangline_storage.s3_options import S3Credentials, S3Options

class Endless(io.RawIOBase):
    given = 0
    def read(self, size=-1):
        if self.given > 18 << 20:
            print("half-way", flush=True)
            sys.stdin.read()
        self.given += size
        return b"x" * size

kind, place, prefix, endpoint = sys.argv[1:5]
if kind == "local":
    store = LocalStore(Path(place))
else:
    store = S3Store(place, prefix, endpoint=endpoint,
                    options=S3Options(part_size_bytes=5 << 20, part_threads=2))
store.put("torn/object", Endless(), if_absent=True)
"""

    @pytest.fixture
    def writer(
        self, store: ObjectStore, request: pytest.FixtureRequest
    ) -> Iterator[subprocess.Popen[str]]:
        env = dict(os.environ)
        if isinstance(store, S3Store):
            server: S3Server = request.getfixturevalue("s3_server")
            env |= server.proxy.environment
            where = ("s3", store.bucket, store.prefix, server.proxy.endpoint)
        else:
            assert isinstance(store, LocalStore)
            where = ("local", str(store.root), "", "")
        process = subprocess.Popen(
            [sys.executable, "-c", self.WRITER, *where],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
        )
        yield process
        process.kill()
        process.communicate()

    @pytest.mark.parametrize("store", OUTLIVES_ITS_WRITER, indirect=True)
    def test_a_killed_writer_leaves_no_object(
        self, store: ObjectStore, writer: subprocess.Popen[str]
    ) -> None:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "half-way\n"
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        with pytest.raises(NotFound):
            store.get("torn/object")
        assert keys(store) == []
        store.put("torn/object", b"whole", if_absent=True)
        assert store.remove_partial(older_than_s=3600) == 0
        assert store.remove_partial(older_than_s=0) == 1
        assert store.remove_partial(older_than_s=0) == 0
        assert store.get("torn/object") == b"whole"
