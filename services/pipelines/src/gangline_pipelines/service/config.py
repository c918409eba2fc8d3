"""Settings of the pipelines service."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from gangline_service.settings import DecidingSettings


class PipelineSettings(DecidingSettings):
    """The settings of the pipelines service."""

    section: ClassVar[str] = "pipelines"

    store_url: Annotated[str, Field(min_length=1)]
    """The object store: file:///path or s3://bucket/prefix?endpoint=...; see `open_store`."""
    outputs_read_gb: Annotated[float, Field(ge=0)] = 1.0
    """Outputs of a hit up to this size are read and compared; of larger ones the sizes are."""
