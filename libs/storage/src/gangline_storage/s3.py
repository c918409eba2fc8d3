"""An object store in a bucket of S3, or of any server that speaks S3 with conditional writes."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, TypeVar

from gangline_storage.durable import os_errors, replace_file
from gangline_storage.errors import InvalidKey, NotFound, StoreError
from gangline_storage.keys import (
    MAX_KEY_BYTES,
    check_delete_prefix,
    check_key,
    check_prefix,
    check_range,
)
from gangline_storage.pace import Pace, paced
from gangline_storage.port import CHUNK_BYTES, ObjectInfo
from gangline_storage.retry import TransientError
from gangline_storage.s3_client import (
    NoSuchUploadError,
    PreconditionFailedError,
    RangeBeyondEndError,
    given,
    make_client,
    s3_errors,
)
from gangline_storage.s3_direct import S3Direct
from gangline_storage.s3_options import S3Credentials, S3Options
from gangline_storage.s3_upload import S3Put

_MAX_S3_KEY_BYTES = 1024
_PAGE = 1000
_NONE: Mapping[str, str] = MappingProxyType({})
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Reading:
    body: Any
    size_bytes: int
    etag: str


class S3Store:
    """Objects below `prefix` in `bucket`.

    Put-if-absent rests on the server's conditional writes (`If-None-Match: *`); a server
    that ignores the header would silently overwrite, so use one that has it.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        endpoint: str | None = None,
        region: str | None = None,
        credentials: S3Credentials | None = None,
        options: S3Options | None = None,
    ) -> None:
        prefix = prefix.strip("/")
        if prefix:
            check_key(prefix)
            if len(prefix.encode()) + 1 + MAX_KEY_BYTES > _MAX_S3_KEY_BYTES:
                room = _MAX_S3_KEY_BYTES - MAX_KEY_BYTES - 1
                raise InvalidKey(f"prefix: {prefix!r} is over the limit of {room} bytes")
        self.bucket = bucket
        self.prefix = f"{prefix}/" if prefix else ""
        self.endpoint = endpoint
        self._options = options or S3Options()
        self._client = make_client(endpoint, region, credentials, self._options)

    def __repr__(self) -> str:
        """Where it is, without credentials."""
        return f"S3Store(bucket={self.bucket!r}, prefix={self.prefix!r}, endpoint={self.endpoint})"

    def put(self, key: str, data: bytes | BinaryIO, *, if_absent: bool = False) -> ObjectInfo:
        """See ObjectStore.put."""
        check_key(key)
        if isinstance(data, bytes | bytearray | memoryview):
            return self._new_put(key, if_absent=if_absent).from_stream(
                io.BytesIO(data), size_bytes=len(data)
            )
        return self._new_put(key, if_absent=if_absent).from_stream(data)

    def put_file(
        self,
        key: str,
        path: Path,
        *,
        if_absent: bool = False,
        link: bool = False,
        pace: Pace | None = None,
    ) -> ObjectInfo:
        """See ObjectStore.put_file; there is nothing to link."""
        del link
        check_key(key)
        with os_errors(f"read {path}"):
            if not path.is_file():
                raise StoreError(f"read {path}: is not a regular file")
            file = path.open("rb")
        with file:
            size_bytes = path.stat().st_size
            return self._new_put(key, if_absent=if_absent).from_stream(
                file if pace is None else paced(file, pace), size_bytes=size_bytes
            )

    def get(self, key: str) -> bytes:
        """See ObjectStore.get."""
        what = f"get {key}"
        return self._retried(what, lambda: bytes(self._open(key).body.read()))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """See ObjectStore.get_range."""
        check_range(start, length)
        if length == 0:
            self.head(key)
            return b""
        end = f"{start + length - 1}"
        try:
            return self._retried(
                f"get {key}", lambda: bytes(self._open(key, start, end).body.read())
            )
        except RangeBeyondEndError:
            return b""

    def stream(
        self, key: str, chunk_bytes: int = CHUNK_BYTES, *, start: int = 0
    ) -> Iterator[bytes]:
        """See ObjectStore.stream; a broken connection is taken up where it broke."""
        if chunk_bytes < 1:
            raise ValueError(f"chunk_bytes must be at least 1: {chunk_bytes}")
        check_range(start, 0)
        try:
            return self._chunks(key, self._first_reading(key, start), chunk_bytes, start)
        except RangeBeyondEndError:
            return iter(())

    def fetch(self, key: str, path: Path, *, link: bool = False) -> ObjectInfo:
        """See ObjectStore.fetch; there is nothing to link."""
        del link
        reading = self._first_reading(key)
        with os_errors(f"fetch {key} to {path}"):
            size_bytes = replace_file(path, self._chunks(key, reading, CHUNK_BYTES))
        return ObjectInfo(key, size_bytes)

    def head(self, key: str) -> ObjectInfo:
        """See ObjectStore.head."""
        name = self._name(key)

        def once() -> int:
            answer = self._client.head_object(Bucket=self.bucket, Key=name)
            given(answer, "ETag")
            return int(given(answer, "ContentLength"))

        return ObjectInfo(key, self._retried(f"head {key}", once))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """See ObjectStore.list; a page of up to 1000 objects is one request."""
        check_prefix(prefix)
        return self._pages(prefix)

    def delete(self, key: str) -> None:
        """See ObjectStore.delete."""
        name = self._name(key)
        try:
            self._retried(
                f"delete {key}", lambda: self._client.delete_object(Bucket=self.bucket, Key=name)
            )
        except NotFound:
            return

    def delete_prefix(self, prefix: str) -> int:
        """See ObjectStore.delete_prefix; 1000 objects are one request."""
        check_delete_prefix(prefix)
        keys = [info.key for info in self.list(prefix)]
        for start in range(0, len(keys), _PAGE):
            self._delete_all(prefix, keys[start : start + _PAGE])
        return len(keys)

    def remove_partial(self, *, older_than_s: float) -> int:
        """See ObjectStore.remove_partial: multipart uploads that were never completed."""
        what = f"list uploads in {self.bucket}"
        before = time.time() - older_than_s

        def once() -> tuple[tuple[str, str], ...]:
            pages = self._client.get_paginator("list_multipart_uploads").paginate(
                Bucket=self.bucket, Prefix=self.prefix
            )
            return tuple(
                (upload["Key"], upload["UploadId"])
                for page in pages
                for upload in page.get("Uploads", ())
                if upload["Initiated"].timestamp() <= before
            )

        removed = 0
        for name, upload_id in self._retried(what, once):
            try:
                self._retried(f"abort upload of {name}", self._aborter(name, upload_id))
            except (NoSuchUploadError, NotFound):
                continue
            removed += 1
        return removed

    @property
    def direct(self) -> S3Direct:
        """Presigned requests, for clients that reach the S3 server themselves."""
        return S3Direct(self._client, self.bucket, self._name, self._options.retry)

    def _aborter(self, name: str, upload_id: str) -> Callable[[], object]:
        return lambda: self._client.abort_multipart_upload(
            Bucket=self.bucket, Key=name, UploadId=upload_id
        )

    def _name(self, key: str) -> str:
        return self.prefix + check_key(key)

    def _new_put(self, key: str, *, if_absent: bool) -> S3Put:
        name = self._name(key)
        return S3Put(self._client, self.bucket, name, key, if_absent, self._options)

    def _retried(self, what: str, once: Callable[[], T]) -> T:
        def attempt_once(_attempt: int) -> T:
            with s3_errors(what, self.bucket):
                return once()

        return self._options.retry.run(what, attempt_once)

    def _open(
        self, key: str, start: int = 0, end: str = "", condition: Mapping[str, str] = _NONE
    ) -> _Reading:
        """Begin to read the object from byte `start` to byte `end`, or to its end."""
        wanted = {"Range": f"bytes={start}-{end}"} if start or end else {}
        answer = self._client.get_object(
            Bucket=self.bucket, Key=self._name(key), **wanted, **condition
        )
        try:
            if wanted and not str(answer.get("ContentRange")).startswith(f"bytes {start}-"):
                raise TransientError("the S3 server gave other bytes than were asked for")
            size_bytes = int(given(answer, "ContentLength"))
            return _Reading(answer["Body"], size_bytes, str(given(answer, "ETag")))
        except TransientError:
            answer["Body"].close()
            raise

    def _first_reading(self, key: str, start: int = 0) -> _Reading:
        return self._retried(f"get {key}", lambda: self._open(key, start))

    def _chunks(
        self, key: str, first: _Reading, chunk_bytes: int, start: int = 0
    ) -> Iterator[bytes]:
        body = first.body
        offset, end = start, start + first.size_bytes

        def next_chunk(attempt: int) -> bytes:
            nonlocal body
            with s3_errors(f"get {key}", self.bucket):
                if attempt > 0:
                    if offset == end:
                        return b""
                    body.close()
                    body = self._open(key, offset, condition={"IfMatch": first.etag}).body
                return bytes(body.read(chunk_bytes))

        try:
            while True:
                try:
                    chunk = self._options.retry.run(f"get {key}", next_chunk)
                except PreconditionFailedError:
                    raise StoreError(f"get {key}: was replaced while it was read") from None
                if not chunk:
                    return
                offset += len(chunk)
                yield chunk
        finally:
            body.close()

    def _pages(self, prefix: str) -> Iterator[ObjectInfo]:
        query = {"Bucket": self.bucket, "Prefix": self.prefix + prefix}

        def once() -> dict[str, Any]:
            answer: dict[str, Any] = self._client.list_objects_v2(**query)
            given(answer, "IsTruncated")
            return answer

        while True:
            answer = self._retried(f"list {prefix}", once)
            for item in answer.get("Contents", ()):
                name = str(item["Key"])
                if not name.startswith(query["Prefix"]):
                    raise StoreError(f"list {prefix}: the S3 server gave other keys, as {name!r}")
                yield ObjectInfo(name[len(self.prefix) :], item["Size"])
            if not answer["IsTruncated"]:
                return
            token = answer.get("NextContinuationToken")
            if token in {None, query.get("ContinuationToken")}:
                raise StoreError(f"list {prefix}: the S3 server does not give the rest of the list")
            query["ContinuationToken"] = token

    def _delete_all(self, prefix: str, keys: Sequence[str]) -> None:
        what = f"delete {prefix}"
        objects = [{"Key": self.prefix + key} for key in keys]

        def once() -> None:
            answer = self._client.delete_objects(
                Bucket=self.bucket, Delete={"Objects": objects, "Quiet": True}
            )
            if failed := answer.get("Errors"):
                first = failed[0]
                raise TransientError(
                    f"{len(failed)} objects, {first.get('Key')}: {first.get('Code')}"
                )

        self._retried(what, once)
