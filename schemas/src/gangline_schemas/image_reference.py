"""Names of container images, as Docker reads them: registry, repository, tag and digest."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from ipaddress import IPv6Address
from typing import Self

DEFAULT_REGISTRY = "docker.io"
DEFAULT_TAG = "latest"
_LONGEST = 255
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_PART}(?:/{_PART})*")
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_HOST = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9a-fA-F:]+\])(?::[0-9]{{1,5}})?")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def run_image_key(team: str, job_id: str) -> str:
    """Where the object store has the image of a run by its digest: a JSON object with `image`."""
    return f"teams/{team}/images/{job_id}.json"


@dataclass(frozen=True, slots=True)
class ImageReference:
    """An image by its full name. With a digest the tag is only a note."""

    registry: str
    repository: str
    tag: str | None = None
    digest: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `[REGISTRY/]REPOSITORY[:TAG][@sha256:DIGEST]`. Raises ValueError.

        Without a registry it is docker.io, without tag and digest the tag `latest`.
        """
        rest, at, digest = text.partition("@")
        if at and not _DIGEST.fullmatch(digest):
            raise ValueError(f"{text}: a digest is sha256: and 64 of 0-9a-f")
        first, slash, path = rest.partition("/")
        if slash and (set(first) & set(".:[") or first == "localhost" or first != first.lower()):
            registry = first
        else:
            registry, path = DEFAULT_REGISTRY, rest
        if not _is_host(registry):
            raise ValueError(f"{text}: {registry!r} is not the name of a registry")
        path, colon, tag = path.partition(":")
        if colon and not _TAG.fullmatch(tag):
            raise ValueError(f"{text}: {tag!r} is not a tag")
        if registry in {"index.docker.io", "registry-1.docker.io"}:
            registry = DEFAULT_REGISTRY
        if registry == DEFAULT_REGISTRY and path and "/" not in path:
            path = f"library/{path}"
        if not _REPOSITORY.fullmatch(path) or len(path) > _LONGEST:
            raise ValueError(
                f"{text}: is not an image like pytorch/pytorch:2.8.0 or "
                "registry.example.com/team/image@sha256:..."
            )
        return cls(registry, path, tag or (None if digest else DEFAULT_TAG), digest or None)

    @property
    def wanted(self) -> str:
        """The digest, else the tag: a registry is asked for it."""
        return self.digest or self.tag or DEFAULT_TAG

    def at(self, digest: str) -> Self:
        """The same image by this digest."""
        return replace(self, digest=digest)

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        digest = f"@{self.digest}" if self.digest else ""
        return f"{self.registry}/{self.repository}{tag}{digest}"


def _is_host(text: str) -> bool:
    """Whether it is HOST or HOST:PORT; an address of IPv6 is in brackets."""
    if not _HOST.fullmatch(text):
        return False
    address, bracket, port = text.rpartition("]")
    try:
        if bracket:
            IPv6Address(address.removeprefix("["))
        return int(port.rpartition(":")[2] or 1) < 65_536 if ":" in port else True
    except ValueError:
        return False
