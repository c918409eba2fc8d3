"""Answers that S3 does not give: of a proxy before it, or of a server that knows half of S3."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

import pytest

from gangline_storage import NotFound, StoreError, StoreUnavailable
from gangline_storage.retry import Retry
from gangline_storage.s3 import S3Store
from gangline_storage.s3_options import S3Credentials, S3Options

PAGE = b"<html><body>back soon</body></html>"
TAG = {"ETag": '"e"'}


class Answer(NamedTuple):
    status: int
    body: bytes = b""
    headers: dict[str, str] = {}  # noqa: RUF012 # never changed


class Strange(ThreadingHTTPServer):
    """Gives the prepared answers in turn, the last one again and again."""

    answers: list[Answer]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Strange

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        found = self.server.answers
        given = found.pop(0) if len(found) > 1 else found[0]
        self.send_response(given.status)
        for name, value in {"Content-Length": str(len(given.body)), **given.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(given.body)
        self.close_connection = "Content-Length" in given.headers  # it gave fewer bytes

    do_GET = do_HEAD = do_PUT = answer  # noqa: N815

    def log_message(self, *_: object) -> None:  # type: ignore[override]
        """Nothing."""


@pytest.fixture(scope="module")
def server() -> Iterator[Strange]:
    made = Strange(("127.0.0.1", 0), Handler)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


@pytest.fixture(scope="module")
def store(server: Strange) -> S3Store:
    return S3Store(
        "bucket",
        endpoint=f"http://127.0.0.1:{server.server_port}",
        credentials=S3Credentials("key", "secret"),
        options=S3Options(retry=Retry(attempts=2, sleep=lambda _: None)),
    )


def listed(items: str, *, more: bool = False) -> Answer:
    truncated = f"<IsTruncated>{str(more).lower()}</IsTruncated>"
    return Answer(200, f"<ListBucketResult>{truncated}{items}</ListBucketResult>".encode())


GET: Callable[[S3Store], object] = lambda store: store.get("a/k")  # noqa: E731
LIST: Callable[[S3Store], object] = lambda store: [*store.list("a/")]  # noqa: E731
PUT: Callable[[S3Store], object] = lambda store: store.put("a/k", b"x")  # noqa: E731


@pytest.mark.parametrize("do", [GET, LIST, PUT], ids=["get", "list", "put"])
@pytest.mark.parametrize("status", [200, 404])
def test_a_page_of_a_proxy_is_no_answer(
    server: Strange, store: S3Store, do: Callable[[S3Store], object], status: int
) -> None:
    server.answers = [Answer(status, PAGE, {"Content-Type": "text/html"})]
    with pytest.raises(StoreUnavailable, match=r"not S3's|another server"):
        do(store)


def test_an_object_that_s3_does_not_have(server: Strange, store: S3Store) -> None:
    server.answers = [Answer(404, b"<Error><Code>NoSuchKey</Code></Error>")]
    with pytest.raises(NotFound):
        store.get("a/k")


def test_a_redirect_says_what_to_change(server: Strange, store: S3Store) -> None:
    server.answers = [Answer(301, b"<Error><Code>PermanentRedirect</Code></Error>")]
    with pytest.raises(StoreError, match="redirects; give the endpoint"):
        store.get("a/k")


def test_a_server_without_ranges_gives_no_wrong_bytes(server: Strange, store: S3Store) -> None:
    server.answers = [Answer(200, b"0123456789", TAG)]
    with pytest.raises(StoreUnavailable, match="other bytes"):
        store.get_range("a/k", 5, 2)
    server.answers = [
        Answer(200, b"01234", {**TAG, "Content-Length": "10"}),
        Answer(200, b"0123456789", TAG),
    ]
    with pytest.raises(StoreUnavailable, match="other bytes"):
        b"".join(store.stream("a/k", 5))


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (listed("", more=True), "the rest"),
        (listed("<NextContinuationToken>t</NextContinuationToken>", more=True), "the rest"),
        (listed("<Contents><Key>b/k</Key><Size>1</Size></Contents>"), "other keys"),
    ],
    ids=["no token", "one token", "no prefix"],
)
def test_a_list_that_is_wrong_is_no_list(
    server: Strange, store: S3Store, answer: Answer, problem: str
) -> None:
    server.answers = [answer]
    with pytest.raises(StoreError, match=problem):
        store.delete_prefix("a/")
