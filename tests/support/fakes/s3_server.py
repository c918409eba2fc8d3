"""A real S3 server for tests, and a connection to it that can be cut."""

import contextlib
import random
import socket
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gangline.local.s3proxy import BUCKET, S3Proxy
from gangline_storage.retry import Retry
from gangline_storage.s3 import S3Store
from gangline_storage.s3_options import S3Credentials, S3Options

PART_BYTES = 5 << 20
NO_WAIT = Retry(attempts=4, sleep=lambda _seconds: None)


@dataclass(frozen=True)
class S3Server:
    """How tests make stores on the server; each store has its own prefix."""

    proxy: S3Proxy

    def store(
        self, *, endpoint: str | None = None, retry: Retry | None = None, bucket: str = BUCKET
    ) -> S3Store:
        settings = self.proxy.settings
        return S3Store(
            bucket,
            f"test-{uuid.uuid4().hex}",
            endpoint=endpoint or self.proxy.endpoint,
            credentials=S3Credentials(settings.access_key, settings.secret_key),
            options=S3Options(
                part_size_bytes=PART_BYTES,
                part_threads=2,
                connect_timeout_s=2.0,
                read_timeout_s=20.0,
                retry=retry or Retry(attempts=4, first_delay_s=0.05),
            ),
        )


def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A fixture's function."""
    with S3Proxy(tmp_path_factory.mktemp("s3")) as proxy:
        yield S3Server(proxy)


s3_server = pytest.fixture(scope="module", name="s3_server")(started)


class BreakingProxy:
    """A TCP proxy on loopback that loses answers: `lose_answers(n)` cuts the next n of them.

    The request has reached the server, and has its effect there, before the cut.
    """

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._to_lose = 0
        self._cut_after_bytes: int | None = None
        self.lost = 0
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def lose_answers(self, count: int) -> None:
        with self._lock:
            self._to_lose = count

    def cut_next_answer_after(self, size_bytes: int) -> None:
        with self._lock:
            self._cut_after_bytes = size_bytes

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target_port))
                for ends in ((client, server, False), (server, client, True)):
                    threading.Thread(target=self._pump, args=ends, daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if answers and self._cuts(data, passed):
                    break
                sink.sendall(data)
                passed += len(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _cuts(self, data: bytes, passed: int) -> bool:
        with self._lock:
            if self._cut_after_bytes is not None and passed >= self._cut_after_bytes:
                self._cut_after_bytes = None
                self.lost += 1
                return True
            # "100 Continue" asks for the body: cutting there would lose the request instead.
            final = data.startswith(b"HTTP/1.1 ") and not data.startswith(b"HTTP/1.1 100")
            if self._to_lose and final:
                self._to_lose -= 1
                self.lost += 1
                return True
            return False


def write_random_file(path: Path, size_bytes: int, seed: int = 1) -> bytes:
    """Fill a file with bytes that do not repeat within a part; returns them."""
    data = random.Random(seed).randbytes(size_bytes)
    path.write_bytes(data)
    return data
