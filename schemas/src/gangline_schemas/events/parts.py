"""gangline.parts: which release each process of a service, gateway or tracker runs."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from gangline_schemas.base import Event
from gangline_schemas.limits import Name, Release


class PartAnnounced(Event):
    """A process runs this release. It says so at its start and each hour."""

    type: ClassVar[str] = "part.announced"
    part: Name
    instance: Name
    release: Release | None = Field(default=None, description="None: it stops.")
