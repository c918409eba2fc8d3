"""Settings of the checkpoint service."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from gangline_service.settings import DecidingSettings


class CheckpointSettings(DecidingSettings):
    """What the checkpoint service can be told."""

    section: ClassVar[str] = "checkpoints"

    store_url: Annotated[str, Field(min_length=1)]
    """The object store: file:///path or s3://bucket/prefix?endpoint=...; see `open_store`."""
