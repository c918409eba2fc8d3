"""The documents of an image: lists of platforms, manifests and configurations (OCI and Docker)."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from .problems import ImageRefused, NoPlatform

LISTS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
SINGLE = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
MOST_LAYERS = 127
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_LARGEST = 1 << 40

DocumentT = TypeVar("DocumentT", bound="_Document")
Digest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
_Short = Annotated[str, StringConstraints(max_length=128)]
_Folder = Annotated[str, StringConstraints(max_length=4095, pattern=r"^[^\x00]*$")]
_Argument = Annotated[str, StringConstraints(max_length=(128 << 10) - 1, pattern=r"^[^\x00]*$")]
"""As long as Linux lets one argument or variable of a program be, and without NUL."""


class _Document(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, populate_by_name=True)


class Platform(_Document):
    """Which machines one image of a list is for."""

    architecture: _Short
    os: _Short


class Blob(_Document):
    """A document or a layer, by what it holds."""

    digest: Digest
    size: int = Field(ge=0, le=_LARGEST)
    platform: Platform | None = None


class _List(_Document):
    manifests: tuple[Blob, ...] = Field(max_length=1024)


class Manifest(_Document):
    """The parts of an image, the lowest layer first."""

    config: Blob
    layers: tuple[Blob, ...] = Field(min_length=1, max_length=MOST_LAYERS)


class _Settings(_Document):
    environment: tuple[_Argument, ...] | None = Field(None, alias="Env", max_length=4096)
    entrypoint: tuple[_Argument, ...] | None = Field(None, alias="Entrypoint", max_length=4096)
    command: tuple[_Argument, ...] | None = Field(None, alias="Cmd", max_length=4096)
    folder: _Folder | None = Field(None, alias="WorkingDir")


class _Config(_Document):
    architecture: _Short = ""
    os: _Short = ""
    config: _Settings | None = None


@dataclass(frozen=True, slots=True)
class ImageSettings:
    """How an image wants its program to run. `command`: ENTRYPOINT and CMD."""

    environment: dict[str, str]
    command: tuple[str, ...]
    folder: str | None


def own_architecture() -> str:
    """This machine's, by the name that images use."""
    machine = platform.machine()
    return _ARCHITECTURES.get(machine, machine)


def is_list(raw: bytes, media_type: str, image: object) -> bool:
    """Whether a document is a list of images for several platforms. Raises ImageRefused."""
    given = _parsed(raw, image)
    kind = given.get("mediaType") or media_type.partition(";")[0].strip()
    if kind in LISTS or (kind not in SINGLE and "manifests" in given):
        return True
    if given.get("schemaVersion") != 2:
        raise ImageRefused(image, "its manifest is older than schema version 2; push it again")
    return False


def choose(raw: bytes, image: object) -> Blob:
    """The manifest for this machine of a list. Raises NoPlatform, ImageRefused."""
    manifests = _read(_List, raw, image).manifests
    own = own_architecture()
    for blob in manifests:
        if blob.platform is not None and (blob.platform.os, blob.platform.architecture) == (
            "linux",
            own,
        ):
            return blob
    raise NoPlatform(image, f"this node is linux/{own}; the image has {_names(manifests)}")


def read_manifest(raw: bytes, image: object) -> Manifest:
    """The parts of the image. Raises ImageRefused."""
    return _read(Manifest, raw, image)


def read_settings(raw: bytes, image: object) -> ImageSettings:
    """How its program wants to run. Raises NoPlatform, ImageRefused."""
    config = _read(_Config, raw, image)
    own = own_architecture()
    if (config.os or "linux", config.architecture or own) != ("linux", own):
        of = f"{config.os}/{config.architecture}"
        raise NoPlatform(image, f"this node is linux/{own}; the image is for {of}")
    found = config.config or _Settings()
    pairs = (text.partition("=") for text in found.environment or ())
    return ImageSettings(
        {name: value for name, equals, value in pairs if equals and name},
        (*(found.entrypoint or ()), *(found.command or ())),
        found.folder or None,
    )


def _parsed(raw: bytes, image: object) -> dict[str, Any]:
    try:
        given = json.loads(raw.decode())
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        raise ImageRefused(image, "its manifest is not a JSON object")
    return given


def _read(kind: type[DocumentT], raw: bytes, image: object) -> DocumentT:
    try:
        return kind.model_validate(_parsed(raw, image))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ImageRefused(image, f"its manifest is not valid: {place}: {first['msg']}") from None


def _names(manifests: Sequence[Blob]) -> str:
    known = [one.platform for one in manifests if one.platform is not None]
    names = sorted({f"{one.os}/{one.architecture}" for one in known if one.os != "unknown"})
    return ", ".join(names) or "no platform"
