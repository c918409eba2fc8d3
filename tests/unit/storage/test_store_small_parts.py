"""Digests, store URLs, the retry and how S3's errors are read."""

from dataclasses import replace
from pathlib import Path

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from gangline_storage import (
    Digest,
    InvalidKey,
    LocalStore,
    NotFound,
    StoreError,
    StoreUnavailable,
    digest_bytes,
    digest_file,
    open_store,
)
from gangline_storage.retry import Retry, TransientError
from gangline_storage.s3 import S3Store
from gangline_storage.s3_options import S3Credentials, S3Options

EMPTY_XXH3_128 = "99aa06d3014798d86001c324468d497f"  # of the reference implementation


class TestDigest:
    def test_is_xxh3_128(self) -> None:
        assert digest_bytes(b"") == Digest().hexdigest() == EMPTY_XXH3_128

    @given(st.lists(st.binary(max_size=300), max_size=8))
    def test_does_not_depend_on_how_bytes_arrive(self, pieces: list[bytes]) -> None:
        digest = Digest()
        for piece in pieces:
            digest.update(piece)
        assert digest.hexdigest() == digest_bytes(b"".join(pieces))
        assert digest.size_bytes == sum(map(len, pieces))

    def test_of_a_file(self, tmp_path: Path) -> None:
        data = bytes(range(256)) * 10_000
        (tmp_path / "file").write_bytes(data)
        assert digest_file(tmp_path / "file") == digest_bytes(data)


class TestOpenStore:
    @pytest.mark.parametrize("form", ["{}", "file://{}", "file://localhost{}"])
    def test_a_local_directory(self, tmp_path: Path, form: str) -> None:
        store = open_store(form.format(tmp_path / "root"))
        assert isinstance(store, LocalStore)
        assert store.root == tmp_path / "root"

    def test_a_path_with_escapes(self, tmp_path: Path) -> None:
        store = open_store(f"file://{tmp_path}/a%20b%C3%BC")
        assert isinstance(store, LocalStore)
        assert store.root == tmp_path / "a bü"

    def test_s3(self) -> None:
        store = open_store(
            "s3://bucket/some/prefix/?endpoint=http://127.0.0.1:9&region=eu-north-1",
            credentials=S3Credentials("key", "hidden"),
        )
        assert isinstance(store, S3Store)
        assert (store.bucket, store.prefix) == ("bucket", "some/prefix/")
        assert store.endpoint == "http://127.0.0.1:9"
        assert "hidden" not in repr(store)

    @pytest.mark.parametrize(
        ("url", "reason"),
        [
            ("", "the scheme '' is not understood"),
            ("relative/path", "the scheme '' is not understood"),
            ("gs://bucket", "the scheme 'gs' is not understood"),
            ("file://host/path", "file:///absolute"),
            ("file:relative", "file:///absolute"),
            ("file:///path?x=1", "file:///absolute"),
            ("s3:///prefix", "no bucket"),
            ("s3://bucket?endpont=http://x", "the setting 'endpont'"),
            ("s3://bucket?endpoint=127.0.0.1:9000", "endpoint must be http"),
            ("s3://bucket?endpoint=", "endpoint must be http"),
            ("s3://bucket#part", "'#'"),
            ("/a\0b", "NUL"),
            ("s3://[bucket", "store URL"),
        ],
    )
    def test_says_what_it_understands(self, url: str, reason: str) -> None:
        with pytest.raises(StoreError, match=reason):
            open_store(url)

    @pytest.mark.parametrize(
        "url",
        [
            "s3://key:hidden@bucket/x",
            "s3://bucket?secret_key=hidden",
            "s3://bucket?endpoint=http://key:hidden@host",
        ],
    )
    def test_never_shows_a_secret_that_was_put_into_it(self, url: str) -> None:
        with pytest.raises(StoreError) as info:
            open_store(url)
        assert "hidden" not in str(info.value)

    def test_an_s3_prefix_follows_the_rules_of_keys(self) -> None:
        with pytest.raises(InvalidKey):
            open_store("s3://bucket/a/../b")
        with pytest.raises(InvalidKey, match="over the limit"):
            open_store(f"s3://bucket/{'x' * 150}")


class TestRetry:
    def test_waits_longer_each_time_and_gives_up(self) -> None:
        waits: list[float] = []
        retry = Retry(attempts=6, first_delay_s=1.0, longest_delay_s=4.0, sleep=waits.append)

        def fail(attempt: int) -> None:
            raise TransientError(f"reason {attempt}")

        with (
            structlog.testing.capture_logs() as logs,
            pytest.raises(StoreUnavailable, match=r"put k: the store failed 6 times.*reason 5"),
        ):
            retry.run("put k", fail)
        for wait, longest in zip(waits, [1, 2, 4, 4, 4], strict=True):
            assert longest / 2 <= wait <= longest
        assert [entry["reason"] for entry in logs] == [f"reason {n}" for n in range(5)]
        assert {entry["event"] for entry in logs} == {"store.retry"}

    def test_no_try_begins_later_than_the_time_that_it_has(self) -> None:
        now = [0.0]

        def pause(seconds: float) -> None:
            now[0] += seconds

        retry = replace(Retry.within(60.0), clock=lambda: now[0], sleep=pause)
        begun: list[float] = []

        def hang(_attempt: int) -> None:
            begun.append(now[0])
            now[0] += 25.0
            raise TransientError("no answer")

        with pytest.raises(StoreUnavailable, match="failed 3 times"):
            retry.run("put k", hang)
        assert len(begun) == 3
        assert begun[-1] <= 60.0

    def test_stops_at_success_and_at_other_errors(self) -> None:
        waits: list[float] = []
        retry = Retry(sleep=waits.append)

        def second_time(attempt: int) -> str:
            if attempt == 0:
                raise TransientError("away")
            return "answer"

        assert retry.run("get k", second_time) == "answer"
        assert len(waits) == 1

        def not_found(_attempt: int) -> None:
            raise NotFound("k")

        with pytest.raises(NotFound):
            retry.run("get k", not_found)
        assert len(waits) == 1


def test_part_sizes_that_s3_refuses_are_refused_first() -> None:
    with pytest.raises(ValueError, match="5 MiB"):
        S3Options(part_size_bytes=1 << 20)
    with pytest.raises(ValueError, match="part_threads"):
        S3Options(part_threads=0)
