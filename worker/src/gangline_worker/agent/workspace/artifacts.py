"""Artifacts of a job on this node: inputs are fetched and verified, outputs hashed and stored.

An output that is stored again replaces its objects, so damaged ones are repaired by it.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from gangline_schemas.artifacts import (
    MAX_MANIFEST_BYTES,
    MOST_FILES,
    SCORE_BYTES,
    Artifact,
    ArtifactFile,
    ArtifactManifest,
    JobArtifacts,
    manifest_key,
    object_key,
)
from gangline_storage import DamagedObject, digest_bytes, digest_file, read_verified
from gangline_storage.port import ObjectStore
from gangline_worker.agent.isolation.files import Owner, acting_as, opened_as

SCORE_FILE = "value"
"""The file of a score, as a later job finds it."""
_PATH_BYTES = 900


class BadOutput(Exception):
    """An output is not what the job's artifacts say; the message names it."""


class DamagedInput(Exception):
    """An input in the store is not what its digest says."""


@dataclass(frozen=True, slots=True)
class ArtifactStore:
    """The artifacts of a team in the object store."""

    store: ObjectStore
    team: str

    def fetch(self, artifacts: JobArtifacts, folder: Path) -> None:
        """Bring each input into its folder below `folder`, verified.

        Raises DamagedInput, NotFound, OSError and StoreError.
        """
        for name, digest in artifacts.inputs.items():
            target = folder / name
            target.mkdir(parents=True)
            for file in self._manifest(digest).files:
                path = target / file.path
                path.parent.mkdir(parents=True, exist_ok=True)
                self.store.fetch(object_key(self.team, file), path)
                if path.stat().st_size != file.size_bytes or digest_file(path) != file.xxh3:
                    raise DamagedInput(f"input {name}: {file.path} is damaged in the store")

    def put(
        self, artifacts: JobArtifacts, folder: Path, owner: Owner | None
    ) -> dict[str, Artifact]:
        """Store each output that lies below `folder`, by name.

        `owner` is the ranks' user. Raises BadOutput, OSError and StoreError.
        """
        found = {}
        for name, kind in artifacts.outputs.items():
            path = folder / name
            found[name] = (
                self._put_score(name, path, owner)
                if kind == "score"
                else self._put_folder(name, path, owner)
            )
        return found

    def _manifest(self, digest: str) -> ArtifactManifest:
        key = manifest_key(self.team, digest)
        try:
            return ArtifactManifest.decode(
                read_verified(self.store, key, digest, MAX_MANIFEST_BYTES)
            )
        except DamagedObject as error:
            raise DamagedInput(f"manifest {error}") from None

    def _put_folder(self, name: str, folder: Path, owner: Owner | None) -> Artifact:
        with acting_as(owner):
            paths = sorted(
                _files(name, folder), key=lambda path: path.relative_to(folder).as_posix()
            )
        if not paths:
            raise BadOutput(f"output {name}: GANGLINE_OUT/{name} holds no file")
        return self._keep(
            tuple(
                self._put_file(path.relative_to(folder).as_posix(), path, owner) for path in paths
            )
        )

    def _put_score(self, name: str, path: Path, owner: Owner | None) -> Artifact:
        with acting_as(owner):
            known = path.is_file()
        if not known:
            raise BadOutput(f"output {name}: there is no file GANGLINE_OUT/{name} with a number")
        with opened_as(owner, path) as file:
            if file.stat().st_size > SCORE_BYTES:
                raise BadOutput(f"output {name}: is no number")
            text = file.read_text(encoding="utf-8", errors="replace").strip()
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise BadOutput(f"output {name}: {text[:40]!r} is no finite number")
        kept = self._keep((self._put_file(SCORE_FILE, path, owner),))
        return kept.model_copy(update={"value": value})

    def _put_file(self, name: str, path: Path, owner: Owner | None) -> ArtifactFile:
        with opened_as(owner, path) as opened:
            size, digest = opened.stat().st_size, digest_file(opened)
            try:
                file = ArtifactFile(path=name, size_bytes=size, xxh3=digest)
            except ValidationError:
                raise BadOutput(f"{name[:200]!r} cannot be a name in the store") from None
            self.store.put_file(object_key(self.team, file), opened)
        return file

    def _keep(self, files: tuple[ArtifactFile, ...]) -> Artifact:
        raw = ArtifactManifest(files=files).encode()
        digest = digest_bytes(raw)
        self.store.put(manifest_key(self.team, digest), raw)
        size = sum(file.size_bytes for file in files)
        return Artifact(digest=digest, size_bytes=size, files=len(files))


def _files(name: str, folder: Path) -> Iterator[Path]:
    """The plain files of an output. Raises BadOutput for links, odd files and too many."""
    if not folder.is_dir() or folder.is_symlink():
        raise BadOutput(f"output {name}: there is no folder GANGLINE_OUT/{name}")
    count = 0
    for top, folders, files in os.walk(folder, followlinks=False):
        for entry in (*folders, *files):
            path = Path(top) / entry
            shown = path.relative_to(folder).as_posix()
            mode = path.lstat().st_mode
            if stat.S_ISDIR(mode):
                continue
            if not stat.S_ISREG(mode):
                raise BadOutput(f"output {name}: {shown[:200]!r} is a link or no plain file")
            if "\\" in shown or len(shown.encode("utf-8", "replace")) > _PATH_BYTES:
                raise BadOutput(f"output {name}: {shown[:200]!r} cannot be a name in the store")
            count += 1
            if count > MOST_FILES:
                raise BadOutput(f"output {name}: holds more than {MOST_FILES:,} files; pack them")
            yield path
