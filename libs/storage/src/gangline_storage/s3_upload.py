"""Puts to S3: one request for what fits in a part, a multipart upload for the rest.

Every put carries an id in the object's metadata. If an answer is lost and the retry gets "already
there", the id shows whether our own first try wrote that object.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, BinaryIO

import structlog

from gangline_storage.errors import AlreadyExists, NotFound, StoreError, StoreUnavailable
from gangline_storage.port import ObjectInfo
from gangline_storage.retry import TransientError
from gangline_storage.s3_client import NoSuchUploadError, PreconditionFailedError, given, s3_errors
from gangline_storage.s3_options import S3Options

MAX_PARTS = 10_000
PUT_ID = "gangline-put-id"
_CHECKSUM = "CRC32"
_log = structlog.get_logger("gangline.storage")


@dataclass(frozen=True, slots=True)
class S3Put:
    """One put of one object: `name` is the key in the bucket, `key` the store's."""

    client: Any
    bucket: str
    name: str
    key: str
    if_absent: bool
    options: S3Options
    put_id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def from_stream(self, stream: BinaryIO, *, size_bytes: int | None = None) -> ObjectInfo:
        """Put what is left of the stream; `size_bytes`, if known, lets parts be large enough."""
        part_bytes = self.options.part_size_bytes
        if size_bytes is not None:
            part_bytes = max(part_bytes, -(-size_bytes // MAX_PARTS))
        parts = _parts(stream, part_bytes)
        first = next(parts, b"")
        second = next(parts, None)
        if second is None:
            return self.from_bytes(first)
        return self._multipart(chain((first, second), parts))

    def from_bytes(self, data: bytes) -> ObjectInfo:
        """Put `data` in one request."""

        def once(attempt: int) -> ObjectInfo:
            try:
                with s3_errors(self._what, self.bucket):
                    answer = self.client.put_object(
                        Bucket=self.bucket,
                        Key=self.name,
                        Body=data,
                        Metadata={PUT_ID: self.put_id},
                        ChecksumAlgorithm=_CHECKSUM,
                        **self._condition,
                    )
                given(answer, "ETag")
            except PreconditionFailedError:
                return self._own_or_already_exists(attempt)
            return ObjectInfo(self.key, len(data))

        return self.options.retry.run(self._what, once)

    @property
    def _what(self) -> str:
        return f"put {self.key}"

    @property
    def _condition(self) -> dict[str, str]:
        return {"IfNoneMatch": "*"} if self.if_absent else {}

    def _own_or_already_exists(self, attempt: int) -> ObjectInfo:
        if attempt > 0:
            try:
                with s3_errors(self._what, self.bucket):
                    answer = self.client.head_object(Bucket=self.bucket, Key=self.name)
            except NotFound:
                raise TransientError("the object in the way was deleted meanwhile") from None
            if answer.get("Metadata", {}).get(PUT_ID) == self.put_id:
                return ObjectInfo(self.key, answer["ContentLength"])
        raise AlreadyExists(f"{self.key!r} has an object already")

    def _multipart(self, parts: Iterable[bytes]) -> ObjectInfo:
        upload_id = self._create()
        try:
            size_bytes, uploaded = self._upload(upload_id, parts)
            self._complete(upload_id, uploaded)
        except (NoSuchUploadError, NotFound):
            raise self._ended() from None
        except BaseException:
            self._abort(upload_id)
            raise
        return ObjectInfo(self.key, size_bytes)

    def _create(self) -> str:
        def once(_attempt: int) -> str:
            with s3_errors(self._what, self.bucket):
                answer = self.client.create_multipart_upload(
                    Bucket=self.bucket,
                    Key=self.name,
                    Metadata={PUT_ID: self.put_id},
                    ChecksumAlgorithm=_CHECKSUM,
                )
            return str(given(answer, "UploadId"))

        return self.options.retry.run(self._what, once)

    def _upload(self, upload_id: str, parts: Iterable[bytes]) -> tuple[int, list[dict[str, Any]]]:
        """Upload all parts, a few at a time; memory holds one part per thread and one more."""
        size_bytes = 0
        uploaded: list[dict[str, Any]] = []
        running: deque[Future[dict[str, Any]]] = deque()
        pool = ThreadPoolExecutor(self.options.part_threads, thread_name_prefix="s3-part")
        try:
            for number, part in enumerate(parts, start=1):
                if number > MAX_PARTS:
                    raise StoreError(
                        f"{self._what}: more than {MAX_PARTS} parts; "
                        "raise part_size_bytes, or put a file, whose size is known"
                    )
                size_bytes += len(part)
                if len(running) == self.options.part_threads:
                    uploaded.append(running.popleft().result())
                running.append(pool.submit(self._upload_part, upload_id, number, part))
            uploaded.extend(future.result() for future in running)
        finally:
            # No part may arrive after the upload was aborted: S3 would keep and bill it.
            pool.shutdown(wait=True, cancel_futures=True)
        return size_bytes, uploaded

    def _upload_part(self, upload_id: str, number: int, part: bytes) -> dict[str, Any]:
        what = f"{self._what} part {number}"

        def once(_attempt: int) -> dict[str, Any]:
            with s3_errors(what, self.bucket):
                answer = self.client.upload_part(
                    Bucket=self.bucket,
                    Key=self.name,
                    UploadId=upload_id,
                    PartNumber=number,
                    Body=part,
                    ChecksumAlgorithm=_CHECKSUM,
                )
            named = {"PartNumber": number, "ETag": given(answer, "ETag")}
            if checksum := answer.get(f"Checksum{_CHECKSUM}"):
                named[f"Checksum{_CHECKSUM}"] = checksum
            return named

        return self.options.retry.run(what, once)

    def _complete(self, upload_id: str, uploaded: list[dict[str, Any]]) -> None:
        def once(attempt: int) -> None:
            try:
                with s3_errors(self._what, self.bucket):
                    answer = self.client.complete_multipart_upload(
                        Bucket=self.bucket,
                        Key=self.name,
                        UploadId=upload_id,
                        MultipartUpload={"Parts": uploaded},
                        **self._condition,
                    )
                given(answer, "ETag")
            except PreconditionFailedError:
                self._own_or_already_exists(attempt)
            except (NoSuchUploadError, NotFound):
                # An earlier try completed it and only its answer was lost, or a conflict ended the
                # upload; the object's id shows which.
                self._own_or_ended(attempt)

        self.options.retry.run(self._what, once)

    def _own_or_ended(self, attempt: int) -> None:
        try:
            self._own_or_already_exists(attempt)
        except AlreadyExists:
            if self.if_absent and attempt > 0:
                raise
            raise self._ended() from None

    def _ended(self) -> StoreUnavailable:
        return StoreUnavailable(f"{self._what}: its multipart upload was ended; put it again")

    def _abort(self, upload_id: str) -> None:
        """Give the parts back; what fails here is left to `remove_partial`."""
        try:
            with s3_errors(self._what, self.bucket):
                self.client.abort_multipart_upload(
                    Bucket=self.bucket, Key=self.name, UploadId=upload_id
                )
        except NoSuchUploadError:
            return
        except (StoreError, TransientError) as error:
            _log.warning("store.abort_failed", key=self.key, reason=str(error))


def _parts(stream: BinaryIO, part_bytes: int) -> Iterator[bytes]:
    """The stream in parts of exactly `part_bytes`, the last one shorter."""
    while True:
        pieces: list[bytes] = []
        missing = part_bytes
        while missing and (piece := stream.read(missing)):
            pieces.append(piece)
            missing -= len(piece)
        if pieces:
            yield pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if missing:
            return
