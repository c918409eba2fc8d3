"""MLflow's artifact repository on the platform's object store, for one team at a time.

MLflow finds it by the scheme of an address. The team is that of the request, and each
path must be in its folder, so a location that a user wrote into a tag reaches no other team's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from flask import Response, request
from mlflow.entities import FileInfo
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import (
    INTERNAL_ERROR,
    INVALID_PARAMETER_VALUE,
    PERMISSION_DENIED,
    RESOURCE_DOES_NOT_EXIST,
    TEMPORARILY_UNAVAILABLE,
)
from mlflow.server import handlers
from mlflow.store.artifact import artifact_repository_registry
from mlflow.store.artifact.artifact_repo import ArtifactRepository
from mlflow.utils.mime_type_utils import _guess_mime_type
from mlflow.utils.workspace_context import get_request_workspace

from gangline_mlflow.artifacts import Artifacts, Busy, OverLimit, owned
from gangline_mlflow.bodies import Span, span_of
from gangline_mlflow.database import DatabaseAway
from gangline_mlflow.parts import ARTIFACTS, current
from gangline_storage.errors import InvalidKey, NotFound, StoreError, StoreUnavailable

_KEPT_SCHEMES = ("runs", "models")


class TeamArtifacts(ArtifactRepository):  # type: ignore[misc]  # MLflow has no types
    """The artifacts below one address, such as gangline-artifacts:/workspaces/nlp/1."""

    def __init__(
        self, artifact_uri: str, tracking_uri: str | None = None, registry_uri: str | None = None
    ) -> None:
        super().__init__(artifact_uri, tracking_uri, registry_uri)
        self._root = urlsplit(artifact_uri).path.strip("/")

    @property
    def artifacts(self) -> Artifacts:
        """The files of all teams."""
        return current().artifacts

    def key(self, path: str | None) -> str:
        """The store's key of a path below this address. Raises InvalidKey."""
        joined = "/".join(part for part in (self._root, (path or "").strip("/")) if part)
        return joined if joined == f"workspaces/{_team()}" else owned(_team(), joined)

    def log_artifact(self, local_file: str, artifact_path: str | None = None) -> None:
        """Store a file below a folder."""
        file = Path(local_file)
        self._put(file, file.name, artifact_path)

    def log_artifacts(self, local_dir: str, artifact_path: str | None = None) -> None:
        """Store all files of a folder."""
        top = Path(local_dir)
        for file in sorted(top.rglob("*")):
            if file.is_file():
                self._put(file, file.relative_to(top).as_posix(), artifact_path)

    def list_artifacts(self, path: str | None = None) -> list[FileInfo]:
        """The files and folders right below a folder."""
        with refusals():
            entries = self.artifacts.listed(self.key(path))
        cut = f"{self._root}/" if self._root else ""
        return [
            FileInfo(entry.path.removeprefix(cut), entry.size_bytes is None, entry.size_bytes)
            for entry in entries
        ]

    def delete_artifacts(self, artifact_path: str | None = None) -> None:
        """Remove a file or a folder."""
        with refusals():
            self.artifacts.delete(owned(_team(), self.key(artifact_path)))

    def _put(self, path: Path, name: str, folder: str | None) -> None:
        key = f"{folder}/{name}" if folder else name
        with refusals(), path.open("rb") as file:
            self.artifacts.put(self.key(key), file, path.stat().st_size)

    def _download_file(self, remote_file_path: str, local_path: str) -> None:
        with refusals():
            self.artifacts.store.fetch(self.key(remote_file_path), Path(local_path))


def _team() -> str:
    return get_request_workspace() or ""


@contextmanager
def refusals() -> Iterator[None]:
    """Turn errors of the store and of the database into MLflow's."""
    try:
        yield
    except InvalidKey as error:
        raise MlflowException(str(error), error_code=INVALID_PARAMETER_VALUE) from None
    except Busy as error:
        raise MlflowException(str(error), error_code=TEMPORARILY_UNAVAILABLE) from None
    except OverLimit as error:
        raise MlflowException(str(error), error_code=PERMISSION_DENIED) from None
    except NotFound:
        raise MlflowException("No such artifact", error_code=RESOURCE_DOES_NOT_EXIST) from None
    except StoreUnavailable as error:
        raise MlflowException(
            f"the object store does not answer: {error}", error_code=TEMPORARILY_UNAVAILABLE
        ) from error
    except DatabaseAway as error:
        raise MlflowException(
            f"the database does not answer: {error}", error_code=TEMPORARILY_UNAVAILABLE
        ) from error
    except StoreError as error:
        raise MlflowException(str(error), error_code=INTERNAL_ERROR) from error


def headers_of(path: str, span: Span) -> dict[str, str]:
    """The headers of an answer with bytes of a file: a browser saves it, and never shows it."""
    name = path.rpartition("/")[2]
    found = {
        "content-type": _guess_mime_type(name),
        "content-length": str(span.length),
        "content-disposition": handlers._content_disposition_attachment(name),  # noqa: SLF001
        "accept-ranges": "bytes",
        "x-content-type-options": "nosniff",
    }
    return {**found, "content-range": span.content_range} if span.partial else found


def send_artifact(repository: TeamArtifacts, path: str) -> Response:
    """Answer MLflow's own pages from the store, in place of a copy on this machine's disk."""
    with refusals():
        key = repository.key(path)
        store = repository.artifacts.store
        span = span_of(request.headers.get("Range"), size := store.head(key).size_bytes)
        if span is None:
            return Response(status=416, headers={"content-range": f"bytes */{size}"})
        chunks = store.stream(key, start=span.start)
    return Response(_cut(chunks, span.length), 206 if span.partial else 200, headers_of(path, span))


def _cut(chunks: Iterator[bytes], length: int) -> Iterator[bytes]:
    for chunk in chunks:
        yield chunk[:length]
        length -= len(chunk)
        if length <= 0:
            return


def install(repository: type[TeamArtifacts]) -> None:
    """Let MLflow know this repository, and no other that reads files or calls hosts.

    A user can name any address as that of a trace's data.
    """
    registry: Any = artifact_repository_registry._artifact_repository_registry  # noqa: SLF001
    kept = {name: registry._registry[name] for name in _KEPT_SCHEMES}  # noqa: SLF001
    # MLflow's own gc asks by the addresses that runs have.
    registry._registry = {**kept, ARTIFACTS: repository, "mlflow-artifacts": repository}  # noqa: SLF001 - see ADR 32
    handlers._send_artifact = send_artifact  # noqa: SLF001 - see ADR 32
