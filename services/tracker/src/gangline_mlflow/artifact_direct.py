"""Large files that go directly between clients and an S3 server, by presigned URLs.

MLflow's client asks for the URLs itself, where the server says that it offers them.
"""

from __future__ import annotations

import hmac
import time
from contextlib import suppress
from typing import ClassVar

from mlflow.entities.multipart_upload import (
    CreateMultipartUploadResponse,
    MultipartUploadCredential,
    MultipartUploadPart,
)
from mlflow.entities.presigned_download import PresignedDownloadUrlResponse
from mlflow.exceptions import MlflowException
from mlflow.store.artifact.artifact_repo import MultipartDownloadMixin, MultipartUploadMixin

from gangline_mlflow.artifact_repo import TeamArtifacts, refusals
from gangline_mlflow.artifacts import OverLimit, Waiting
from gangline_storage.errors import NotFound
from gangline_storage.s3 import S3Store
from gangline_storage.s3_direct import S3Direct

EXPIRES_S = 6 * 3600
"""Of a part's URL: an upload of 64 GB at 3 MB/s."""
ENDED_S = 2 * EXPIRES_S
"""An older upload is given up: since long no part can come."""


class DirectArtifacts(TeamArtifacts, MultipartUploadMixin, MultipartDownloadMixin):  # type: ignore[misc]
    """The artifacts below one address, on an S3 server that clients reach.

    The id of an upload is sealed for its file: some S3 servers take one with any other file.
    """

    secret: ClassVar[bytes] = b""
    """Seals ids of uploads; set before the first request."""

    @property
    def _direct(self) -> S3Direct:
        store = self.artifacts.store
        assert isinstance(store, S3Store)  # noqa: S101 - the settings are checked
        return store.direct

    def create_multipart_upload(
        self, local_file: str, num_parts: int = 1, artifact_path: str | None = None
    ) -> CreateMultipartUploadResponse:
        """Begin an upload. Refused if the team has reached its limit, with parts that have come."""
        with refusals():
            key = self._file(local_file, artifact_path)
            self.artifacts.check_room(key, lambda: self._waiting(key.split("/")[1]))
            try:
                upload, urls = self._direct.begin(key, num_parts, expires_s=EXPIRES_S)
            except ValueError as error:
                raise MlflowException.invalid_parameter_value(f"num_parts: {error}") from None
        parts = [
            MultipartUploadCredential(url=url, part_number=number, headers={})
            for number, url in enumerate(urls, start=1)
        ]
        return CreateMultipartUploadResponse(credentials=parts, upload_id=self._sealed(key, upload))

    def complete_multipart_upload(
        self,
        local_file: str,
        upload_id: str,
        parts: list[MultipartUploadPart],
        artifact_path: str | None = None,
    ) -> None:
        """Make the file of its parts. One above the team's limit is refused and its parts go."""
        with refusals():
            key, direct = self._file(local_file, artifact_path), self._direct
            etags = [(part.part_number, part.etag or "") for part in parts]
            upload = self._opened(key, upload_id)
            size_bytes = direct.size_bytes(key, upload)
            try:
                self.artifacts.replace(key, size_bytes, lambda: direct.complete(key, upload, etags))
            except OverLimit:
                direct.abort(key, upload)
                raise

    def abort_multipart_upload(
        self, local_file: str, upload_id: str, artifact_path: str | None = None
    ) -> None:
        """Give an upload up."""
        with refusals():
            key = self._file(local_file, artifact_path)
            self._direct.abort(key, self._opened(key, upload_id))

    def get_download_presigned_url(
        self, artifact_path: str, expiration: int = 300
    ) -> PresignedDownloadUrlResponse:
        """The URL of a file, which takes ranges."""
        with refusals():
            key = self.key(artifact_path)
            size_bytes = self.artifacts.store.head(key).size_bytes
            url = self._direct.download_url(key, expires_s=expiration)
        return PresignedDownloadUrlResponse(url=url, headers={}, file_size=size_bytes)

    def _waiting(self, team: str) -> Waiting:
        """A team's open uploads. Cost: a request for each.

        An upload that is too old to get further parts is given up.
        """
        direct, stored, uploads = self._direct, 0, 0
        for one in direct.unfinished(f"workspaces/{team}/"):
            if time.time() - one.begun_s > ENDED_S:
                direct.abort(one.key, one.upload)
                continue
            with suppress(NotFound):  # it has just ended
                stored += direct.size_bytes(one.key, one.upload)
                uploads += 1
        return Waiting(stored, uploads)

    def _sealed(self, key: str, upload: str) -> str:
        seal = hmac.digest(self.secret, f"{key}\0{upload}".encode(), "sha256").hex()
        return f"{upload}.{seal}"

    def _opened(self, key: str, sealed: str) -> str:
        upload = sealed.rpartition(".")[0]
        if not hmac.compare_digest(sealed.encode(), self._sealed(key, upload).encode()):
            raise NotFound("no such upload")
        return upload

    def _file(self, local_file: str, folder: str | None) -> str:
        name = local_file.rpartition("/")[2]
        return self.key(f"{folder}/{name}" if folder else name)
