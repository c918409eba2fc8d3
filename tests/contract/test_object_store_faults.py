"""The S3 store against a real server that is away, loses answers, or refuses."""

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog

from gangline.local.s3proxy import BUCKET, S3Proxy
from gangline_storage import AlreadyExists, NotFound, StoreError, StoreUnavailable, digest_bytes
from gangline_storage.retry import Retry
from gangline_storage.s3 import S3Store
from gangline_storage.s3_options import S3Credentials, S3Options
from support.fakes.s3_server import (
    NO_WAIT,
    PART_BYTES,
    BreakingProxy,
    S3Server,
    write_random_file,
)

BIG = 2 * PART_BYTES + 12_345


@pytest.fixture
def breaking(s3_server: S3Server) -> Iterator[BreakingProxy]:
    proxy = BreakingProxy(s3_server.proxy.settings.port)
    yield proxy
    proxy.close()


@pytest.fixture
def store(s3_server: S3Server, breaking: BreakingProxy) -> S3Store:
    return s3_server.store(endpoint=breaking.endpoint, retry=NO_WAIT)


def patient_store(proxy: S3Proxy) -> S3Store:
    """One part at a time; it waits for half a minute."""
    settings = proxy.settings
    return S3Store(
        BUCKET,
        endpoint=proxy.endpoint,
        credentials=S3Credentials(settings.access_key, settings.secret_key),
        options=S3Options(
            retry=Retry(attempts=200, longest_delay_s=0.2),
            part_size_bytes=PART_BYTES,
            part_threads=1,
            connect_timeout_s=1.0,
            read_timeout_s=5.0,
        ),
    )


@pytest.fixture
def closed_port() -> Iterator[int]:
    with socket.socket() as holder:  # bound, so that no other process gets it; not listening
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


class TestServerAway:
    def test_says_unavailable_after_bounded_logged_tries(
        self, s3_server: S3Server, closed_port: int, tmp_path: Path
    ) -> None:
        waits: list[float] = []
        retry = Retry(attempts=3, first_delay_s=0.2, sleep=waits.append)
        store = s3_server.store(endpoint=f"http://127.0.0.1:{closed_port}", retry=retry)
        write_random_file(tmp_path / "big", PART_BYTES + 1)
        calls: list[Callable[[], object]] = [
            lambda: store.put("k", b"x"),
            lambda: store.put_file("k", tmp_path / "big"),
            lambda: store.get("k"),
            lambda: store.get_range("k", 0, 1),
            lambda: store.stream("k"),
            lambda: store.fetch("k", tmp_path / "out"),
            lambda: store.head("k"),
            lambda: list(store.list()),
            lambda: store.delete("k"),
            lambda: store.delete_prefix("k/"),
            lambda: store.remove_partial(older_than_s=0),
        ]
        for call in calls:
            waits.clear()
            with structlog.testing.capture_logs() as logs, pytest.raises(StoreUnavailable) as info:
                call()
            assert "failed 3 times" in str(info.value)
            assert len(waits) == 2
            assert all(0.1 <= wait <= 0.4 for wait in waits)
            assert [entry["attempt"] for entry in logs if entry["event"] == "store.retry"] == [1, 2]
        assert not (tmp_path / "out").exists()

    def test_waits_for_a_server_that_comes_back(self, tmp_path: Path) -> None:
        proxy = S3Proxy(tmp_path / "s3")
        proxy.start()
        settings = proxy.settings
        down = threading.Event()
        store = patient_store(proxy)
        try:
            store.put("before", b"kept")
            proxy.stop()
            answer: list[object] = []

            def put() -> None:
                down.set()
                answer.append(store.put("during", b"arrived", if_absent=True))

            thread = threading.Thread(target=put)
            thread.start()
            assert down.wait(10)
            proxy.start()
            assert proxy.settings == settings
            thread.join(60)
            assert not thread.is_alive()
            assert len(answer) == 1
            assert (store.get("before"), store.get("during")) == (b"kept", b"arrived")
        finally:
            proxy.stop()

    def test_an_upload_goes_on_with_the_parts_that_the_server_does_not_have(
        self, tmp_path: Path
    ) -> None:
        proxy = S3Proxy(tmp_path / "s3")
        proxy.start()
        store = patient_store(proxy)
        data = write_random_file(tmp_path / "big", 3 * PART_BYTES + 12_345)
        taken: list[object] = []
        gone, back = threading.Event(), threading.Timer(1.0, proxy.start)
        real = store._client.upload_part

        def upload_part(**request: object) -> object:
            if len(taken) == 2 and not gone.is_set():
                gone.set()
                proxy.stop()
                back.start()
            answer = real(**request)
            taken.append(request["PartNumber"])
            return answer

        store._client.upload_part = upload_part
        try:
            assert store.put_file("big", tmp_path / "big").size_bytes == len(data)
            assert taken == [1, 2, 3, 4]
            assert digest_bytes(store.get("big")) == digest_bytes(data)
        finally:
            back.cancel()
            proxy.stop()

    def test_an_upload_that_was_ended_meanwhile_can_be_put_again(
        self, s3_server: S3Server, tmp_path: Path
    ) -> None:
        store = s3_server.store()
        data = write_random_file(tmp_path / "big", BIG)
        real = store._client.upload_part

        def upload_part(**request: object) -> object:
            store.remove_partial(older_than_s=-60)
            return real(**request)

        store._client.upload_part = upload_part
        with pytest.raises(StoreUnavailable, match="put it again"):
            store.put_file("big", tmp_path / "big")
        store._client.upload_part = real
        assert store.put_file("big", tmp_path / "big").size_bytes == len(data)


class TestLostAnswers:
    def test_a_put_if_absent_knows_its_own_first_try(
        self, store: S3Store, breaking: BreakingProxy
    ) -> None:
        breaking.lose_answers(1)
        assert store.put("k", b"mine", if_absent=True).size_bytes == 4
        assert breaking.lost == 1
        assert store.get("k") == b"mine"

    def test_and_still_loses_to_another_writer(
        self, store: S3Store, breaking: BreakingProxy
    ) -> None:
        store.put("k", b"theirs")
        breaking.lose_answers(1)
        with pytest.raises(AlreadyExists):
            store.put("k", b"mine", if_absent=True)
        assert breaking.lost == 1
        assert store.get("k") == b"theirs"

    @pytest.mark.parametrize("lost", [1, 2, 3])
    def test_a_multipart_upload_survives_them(
        self, store: S3Store, breaking: BreakingProxy, tmp_path: Path, lost: int
    ) -> None:
        data = write_random_file(tmp_path / "big", BIG)
        breaking.lose_answers(lost)
        assert store.put_file("big", tmp_path / "big", if_absent=True).size_bytes == BIG
        assert breaking.lost == lost
        assert digest_bytes(store.get("big")) == digest_bytes(data)

    def test_a_lost_completion_is_recognised(
        self, store: S3Store, breaking: BreakingProxy, tmp_path: Path
    ) -> None:
        data = write_random_file(tmp_path / "big", BIG)
        real = store._client.complete_multipart_upload

        tries = 0

        def losing_the_first_answer(**request: object) -> object:
            nonlocal tries
            tries += 1
            breaking.lose_answers(1 if tries == 1 else 0)
            return real(**request)

        store._client.complete_multipart_upload = losing_the_first_answer
        assert store.put_file("big", tmp_path / "big", if_absent=True).size_bytes == BIG
        assert tries == 2
        assert breaking.lost == 1
        assert digest_bytes(store.get("big")) == digest_bytes(data)

    def test_a_delete_is_repeated(self, store: S3Store, breaking: BreakingProxy) -> None:
        store.put("d/k", b"x")
        breaking.lose_answers(1)
        store.delete("d/k")
        assert breaking.lost == 1
        with pytest.raises(NotFound):
            store.get("d/k")

    @pytest.mark.parametrize("cut_after", [1 << 20, 6 << 20])
    def test_a_cut_stream_goes_on_where_it_broke(
        self, store: S3Store, breaking: BreakingProxy, tmp_path: Path, cut_after: int
    ) -> None:
        data = write_random_file(tmp_path / "big", BIG)
        store.put_file("big", tmp_path / "big")
        breaking.cut_next_answer_after(cut_after)
        assert b"".join(store.stream("big", 100_000)) == data
        assert breaking.lost == 1
        breaking.cut_next_answer_after(cut_after)
        store.fetch("big", tmp_path / "out")
        assert (tmp_path / "out").read_bytes() == data
        assert breaking.lost == 2

    def test_a_cut_stream_does_not_mix_two_versions(
        self, store: S3Store, breaking: BreakingProxy, tmp_path: Path
    ) -> None:
        write_random_file(tmp_path / "one", BIG, seed=1)
        write_random_file(tmp_path / "two", BIG, seed=2)
        store.put_file("big", tmp_path / "one")
        (tmp_path / "out").write_bytes(b"untouched")
        breaking.cut_next_answer_after(6 << 20)
        chunks = store.stream("big", 100_000)
        next(chunks)
        store.put_file("big", tmp_path / "two")
        with pytest.raises(StoreError, match="replaced while it was read"):
            list(chunks)


class TestRefusals:
    def test_wrong_credentials(self, s3_server: S3Server) -> None:
        secret = "a-secret-that-must-not-be-shown"
        waits: list[float] = []
        store = S3Store(
            "gangline",
            endpoint=s3_server.proxy.endpoint,
            credentials=S3Credentials("nobody", secret),
            options=S3Options(retry=Retry(sleep=waits.append)),
        )
        with pytest.raises(StoreError, match="refused access") as info:
            store.put("k", b"x")
        assert not isinstance(info.value, StoreUnavailable)
        assert waits == []
        assert secret not in f"{info.value!r} {store!r} {S3Credentials('nobody', secret)!r}"

    def test_no_bucket(self, s3_server: S3Server) -> None:
        store = s3_server.store(bucket="no-such-bucket")
        for call in (lambda: store.put("k", b"x"), lambda: store.get("k"), lambda: [*store.list()]):
            with pytest.raises(StoreError, match="there is no bucket 'no-such-bucket'") as info:
                call()
            assert not isinstance(info.value, NotFound)

    def test_damage_in_transfer_is_refused(self, s3_server: S3Server) -> None:
        store = s3_server.store()
        real = store._client.put_object

        def damaged(**request: object) -> object:
            return real(**request | {"ChecksumCRC32": "AAAAAA=="})

        store._client.put_object = damaged
        with pytest.raises(StoreError, match="BadDigest"):
            store.put("k", b"x")
        with pytest.raises(NotFound):
            store.get("k")
