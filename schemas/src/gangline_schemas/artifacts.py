"""Artifacts: folders by content, which a job's rank 0 leaves and later jobs read.

Each file of an artifact is an object named by its digest, so equal files are stored once. A
manifest lists the files. The artifact's digest is that of its manifest, so equal folders have equal
digests.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, field_validator, model_validator

from gangline_schemas.base import Identifier, Model
from gangline_schemas.limits import Bytes, MetricValue, ObjectBytes, ObjectKey

MOST_FILES = 20_000
MOST_ARTIFACTS = 2000
"""Inputs of one job, at most."""
MAX_MANIFEST_BYTES = 16 * 1024 * 1024
SCORE_BYTES = 4096
"""A file of a score has at most so many bytes."""
_PART = r"[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?"
OutputName = Annotated[str, StringConstraints(pattern=rf"^{_PART}$")]
InputPath = Annotated[str, StringConstraints(pattern=rf"^{_PART}(/[0-9]{{1,4}})?$")]
"""The name of an input; of an output of a fan-out its number follows: `reports/3`."""
DATA_OF_INPUT = "in:"
"""Before the name of an input: the job's data are that input."""
DigestHex = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
OutputKind = Literal["folder", "score"]


class ArtifactFile(Model):
    """One file: its path, which stays in the folder, its bytes, and their xxh3-128 in hex."""

    path: ObjectKey
    size_bytes: ObjectBytes
    xxh3: DigestHex

    @field_validator("path")
    @classmethod
    def _stays_inside(cls, path: str) -> str:
        if "\\" in path or any(part in {"", ".", ".."} for part in path.split("/")):
            raise ValueError("a path must stay in the folder")
        return path


class ArtifactManifest(Model):
    """The files of an artifact, by path."""

    version: Literal[1] = 1
    files: tuple[ArtifactFile, ...] = Field(max_length=MOST_FILES)

    @model_validator(mode="after")
    def _paths_rise(self) -> Self:
        paths = [file.path for file in self.files]
        if paths != sorted(set(paths)):
            raise ValueError("files must be sorted by path, each once")
        return self


class Artifact(Model):
    """An output of a job: the digest of its manifest, and what it holds."""

    digest: DigestHex
    size_bytes: Bytes = 0
    files: int = Field(default=0, ge=0, le=MOST_FILES)
    value: MetricValue | None = Field(default=None, description="Of a score.")


class JobArtifacts(Model):
    """The artifacts that a job reads and makes; ranks find them below GANGLINE_IN and GANGLINE_OUT.

    Rank 0 leaves the outputs: they are stored when it exits with 0.
    """

    inputs: dict[InputPath, DigestHex] = Field(default_factory=dict, max_length=MOST_ARTIFACTS)
    outputs: dict[OutputName, OutputKind] = Field(default_factory=dict, max_length=64)


def artifacts_prefix(team: Identifier) -> str:
    """The folder of all artifacts of a team in the object store."""
    return f"teams/{team}/artifacts"


def manifest_key(team: Identifier, digest: str) -> str:
    """The key of an artifact's manifest."""
    return f"{artifacts_prefix(team)}/manifests/{digest}.json"


def object_key(team: Identifier, file: ArtifactFile) -> str:
    """The key of the bytes of a file: its digest and size."""
    return f"{artifacts_prefix(team)}/objects/{file.xxh3[:2]}/{file.xxh3}-{file.size_bytes}"
