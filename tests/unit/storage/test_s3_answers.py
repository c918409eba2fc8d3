"""S3's rarer answers, in orders that a server cannot be made to give on demand.

The genuine botocore client parses them; only the HTTP answers are prepared.
"""

import io
from typing import Any

import pytest
from botocore.stub import ANY, Stubber

from gangline_storage import AlreadyExists, StoreError, StoreFull, StoreUnavailable
from gangline_storage.retry import Retry
from gangline_storage.s3_client import make_client
from gangline_storage.s3_options import S3Credentials, S3Options
from gangline_storage.s3_upload import PUT_ID, S3Put

OPTIONS = S3Options(part_size_bytes=5 << 20, part_threads=1, retry=Retry(sleep=lambda _s: None))
MINE = "0123456789abcdef"


@pytest.fixture(scope="module")
def client() -> Any:
    return make_client("http://127.0.0.1:9", None, S3Credentials("key", "secret"), OPTIONS)


@pytest.fixture
def s3(client: Any) -> Any:
    with Stubber(client) as stub:
        yield stub
        stub.assert_no_pending_responses()


@pytest.fixture
def put(client: Any) -> S3Put:
    return S3Put(client, "bucket", "p/k", "k", True, OPTIONS, MINE)


def error(s3: Any, method: str, status: int, code: str) -> None:
    s3.add_client_error(method, code, http_status_code=status)


def object_of(s3: Any, put_id: str) -> None:
    s3.add_response(
        "head_object",
        {"Metadata": {PUT_ID: put_id}, "ContentLength": 4, "ETag": '"e"'},
        {"Bucket": "bucket", "Key": "p/k"},
    )


def upload_of_two_parts(s3: Any) -> io.BytesIO:
    s3.add_response("create_multipart_upload", {"UploadId": "u"})
    for number in (1, 2):
        s3.add_response("upload_part", {"ETag": f'"{number}"', "ChecksumCRC32": "AAAA"})
    return io.BytesIO(b"x" * ((5 << 20) + 1))


class TestOneRequest:
    def test_an_error_after_the_effect(self, s3: Any, put: S3Put) -> None:
        error(s3, "put_object", 500, "InternalError")
        error(s3, "put_object", 412, "PreconditionFailed")
        object_of(s3, MINE)
        assert put.from_bytes(b"mine").size_bytes == 4

    def test_a_refusal_after_an_error_without_effect(self, s3: Any, put: S3Put) -> None:
        error(s3, "put_object", 503, "SlowDown")
        error(s3, "put_object", 412, "PreconditionFailed")
        object_of(s3, "another")
        with pytest.raises(AlreadyExists):
            put.from_bytes(b"mine")

    def test_a_refusal_at_once_needs_no_second_look(self, s3: Any, put: S3Put) -> None:
        error(s3, "put_object", 412, "PreconditionFailed")
        with pytest.raises(AlreadyExists):
            put.from_bytes(b"mine")

    def test_what_stood_in_the_way_is_gone(self, s3: Any, put: S3Put) -> None:
        error(s3, "put_object", 500, "InternalError")
        error(s3, "put_object", 412, "PreconditionFailed")
        error(s3, "head_object", 404, "404")
        s3.add_response(
            "put_object",
            {"ETag": '"e"'},
            {
                "Bucket": "bucket",
                "Key": "p/k",
                "Body": b"mine",
                "Metadata": {PUT_ID: MINE},
                "IfNoneMatch": "*",
                "ChecksumAlgorithm": ANY,
            },
        )
        assert put.from_bytes(b"mine").size_bytes == 4

    def test_a_conflict_with_a_running_write_is_tried_again(self, s3: Any, put: S3Put) -> None:
        error(s3, "put_object", 409, "ConditionalRequestConflict")
        s3.add_response("put_object", {"ETag": '"e"'})
        assert put.from_bytes(b"mine").size_bytes == 4

    def test_a_full_server(self, s3: Any, put: S3Put) -> None:
        error(s3, "put_object", 507, "XMinioStorageFull")
        with pytest.raises(StoreFull, match="no room"):
            put.from_bytes(b"mine")

    def test_an_answer_nobody_expects(self, s3: Any, put: S3Put) -> None:
        error(s3, "put_object", 400, "SomethingNew")
        with pytest.raises(StoreError, match="put k: S3 answered 400 SomethingNew"):
            put.from_bytes(b"mine")


class TestMultipart:
    def test_completed_by_a_try_whose_answer_was_lost(self, s3: Any, put: S3Put) -> None:
        source = upload_of_two_parts(s3)
        error(s3, "complete_multipart_upload", 500, "InternalError")
        error(s3, "complete_multipart_upload", 404, "NoSuchUpload")
        object_of(s3, MINE)
        assert put.from_stream(source).size_bytes == (5 << 20) + 1

    def test_ended_by_a_conflict(self, s3: Any, put: S3Put) -> None:
        source = upload_of_two_parts(s3)
        error(s3, "complete_multipart_upload", 409, "ConditionalRequestConflict")
        error(s3, "complete_multipart_upload", 404, "NoSuchUpload")
        object_of(s3, "another")
        error(s3, "abort_multipart_upload", 404, "NoSuchUpload")
        with pytest.raises(AlreadyExists):
            put.from_stream(source)

    def test_aborted_by_somebody(self, s3: Any, put: S3Put) -> None:
        source = upload_of_two_parts(s3)
        error(s3, "complete_multipart_upload", 404, "NoSuchUpload")
        error(s3, "abort_multipart_upload", 404, "NoSuchUpload")
        with pytest.raises(StoreUnavailable, match="put it again"):
            put.from_stream(source)

    def test_a_failed_abort_does_not_hide_the_reason(self, s3: Any, put: S3Put) -> None:
        source = upload_of_two_parts(s3)
        error(s3, "complete_multipart_upload", 412, "PreconditionFailed")
        error(s3, "abort_multipart_upload", 500, "InternalError")
        with pytest.raises(AlreadyExists):
            put.from_stream(source)
