"""Clients that read and write one object of an S3 store themselves, by presigned URLs.

A URL allows one request for one key until it expires, and holds no credentials. The parts of an
upload become an object with `complete`, so the store's owner sees their size before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote

from gangline_storage.errors import NotFound
from gangline_storage.retry import Retry
from gangline_storage.s3_client import NoSuchUploadError, s3_errors
from gangline_storage.s3_upload import MAX_PARTS

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Unfinished:
    """An upload whose parts are not an object yet. `begun_s`: Unix time."""

    key: str
    upload: str
    begun_s: float


@dataclass(frozen=True, slots=True)
class S3Direct:
    """Presigned requests to one bucket; `name_of` gives the bucket's name of a store's key."""

    client: Any
    bucket: str
    name_of: Callable[[str], str]
    retry: Retry

    def begin(self, key: str, parts: int, *, expires_s: int) -> tuple[str, list[str]]:
        """Begin an upload: its id, and the URL to which each part is PUT, in order.

        Raises ValueError unless `parts` is 1 to 10,000; InvalidKey, StoreError.
        """
        if not 1 <= parts <= MAX_PARTS:
            raise ValueError(f"an upload has 1 to {MAX_PARTS} parts, not {parts}")
        named = {"Bucket": self.bucket, "Key": self.name_of(key)}
        answer = self._retried(
            f"begin upload of {key}", lambda: self.client.create_multipart_upload(**named)
        )
        upload = str(answer["UploadId"])
        urls = [
            self._url("upload_part", expires_s, {**named, "UploadId": upload, "PartNumber": number})
            for number in range(1, parts + 1)
        ]
        return upload, urls

    def size_bytes(self, key: str, upload: str) -> int:
        """The bytes of all parts that have arrived. Raises NotFound."""
        named = {"Bucket": self.bucket, "Key": self.name_of(key), "UploadId": upload}

        def once() -> int:
            pages = self.client.get_paginator("list_parts").paginate(**named)
            return sum(int(part["Size"]) for page in pages for part in page.get("Parts", ()))

        return self._retried(f"list parts of {key}", once)

    def unfinished(self, folder: str) -> list[Unfinished]:
        """The uploads below a folder (it ends with '/') that were neither completed nor aborted."""
        prefix = self.name_of(f"{folder}x").removesuffix("x")

        def once() -> list[Unfinished]:
            pages = self.client.get_paginator("list_multipart_uploads").paginate(
                Bucket=self.bucket, Prefix=prefix
            )
            return [
                Unfinished(
                    folder + one["Key"].removeprefix(prefix),
                    str(one["UploadId"]),
                    one["Initiated"].timestamp(),
                )
                for page in pages
                for one in page.get("Uploads", ())
            ]

        return self._retried(f"list uploads below {folder}", once)

    def complete(self, key: str, upload: str, etags: Sequence[tuple[int, str]]) -> None:
        """Make the object of its parts, as pairs of number and ETag. Raises NotFound."""
        named = {"Bucket": self.bucket, "Key": self.name_of(key), "UploadId": upload}
        parts = {"Parts": [{"PartNumber": number, "ETag": etag} for number, etag in etags]}
        self._retried(
            f"complete upload of {key}",
            lambda: self.client.complete_multipart_upload(**named, MultipartUpload=parts),
        )

    def abort(self, key: str, upload: str) -> None:
        """Give the parts up; an upload that has ended is not an error."""
        named = {"Bucket": self.bucket, "Key": self.name_of(key), "UploadId": upload}
        try:
            self._retried(
                f"abort upload of {key}", lambda: self.client.abort_multipart_upload(**named)
            )
        except NotFound:
            return

    def download_url(self, key: str, *, expires_s: int) -> str:
        """The URL from which the object is read, as an attachment; it need not exist."""
        name = self.name_of(key)
        filename = quote(name.rpartition("/")[2], safe="")
        wanted = {
            "Bucket": self.bucket,
            "Key": name,
            "ResponseContentDisposition": f"attachment; filename*=UTF-8''{filename}",
        }
        return self._url("get_object", expires_s, wanted)

    def _url(self, operation: str, expires_s: int, wanted: Mapping[str, object]) -> str:
        return str(
            self.client.generate_presigned_url(operation, Params=wanted, ExpiresIn=expires_s)
        )

    def _retried(self, what: str, once: Callable[[], T]) -> T:
        def attempt_once(_attempt: int) -> T:
            try:
                with s3_errors(what, self.bucket):
                    return once()
            except NoSuchUploadError:
                raise NotFound(f"{what}: no such upload") from None

        return self.retry.run(what, attempt_once)
