"""Settings of the live view."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from gangline_service.settings import ServiceSettings


class LiveSettings(ServiceSettings):
    """The settings of the live view, in the table [live]."""

    section: ClassVar[str] = "live"

    live_runs: Annotated[int, Field(ge=1)] = 10_000
    """Runs kept; the longest silent are forgotten first, and each after an hour of silence."""
    live_metrics: Annotated[int, Field(ge=1000)] = 500_000
    """Last values of metrics kept of all runs together; the longest silent runs go first."""
