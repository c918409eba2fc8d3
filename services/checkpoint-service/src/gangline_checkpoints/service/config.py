"""Settings of the checkpoint service."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from gangline_checkpoints.core.policy.scrubbing import Scrubbing
from gangline_service.settings import DecidingSettings


class CheckpointSettings(DecidingSettings):
    """The settings of the checkpoint service."""

    section: ClassVar[str] = "checkpoints"

    store_url: Annotated[str, Field(min_length=1)]
    """The object store: file:///path or s3://bucket/prefix?endpoint=...; see `open_store`."""
    verify_files_at_once: Annotated[int, Field(ge=1, le=32)] = 8
    """So many files of a save that is to be committed are read at the same time."""
    scrub_period_hours: Annotated[float, Field(ge=0)] = 24.0
    """So long after its bytes were found right a checkpoint is read again; 0: never."""
    scrub_gap_s: Annotated[float, Field(ge=0)] = 10.0
    """So long nothing is read again after that, whatever is due."""
    scrub_mb_per_s: Annotated[float, Field(gt=0)] = 50.0
    """How fast: in 24 hours 4.3 TB."""

    partial_uploads_days: Annotated[float, Field(ge=0)] = 7.0
    """The age at which parts of an abandoned upload are removed; 0: never.

    Set it longer than the slowest upload takes: an older upload is aborted.
    """

    def scrubbing(self) -> Scrubbing:
        """The policy's form."""
        return Scrubbing(self.scrub_period_hours * 3600, self.scrub_gap_s)
