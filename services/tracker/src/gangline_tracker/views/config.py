"""Settings of the live view."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from gangline_service.settings import ServiceSettings


class LiveSettings(ServiceSettings):
    """The settings of the live view, in the table [live]."""

    section: ClassVar[str] = "live"

    tokens_file: Path
    live_port: Annotated[int, Field(ge=0, le=65535)] = 0
    """Where the view is served on 127.0.0.1; port 0 takes a free one."""
    live_file: Path | None = None
    """Where the bound address is written as JSON: {"pid": ..., "port": ..., "url": ...}."""
    live_window_s: Annotated[float, Field(gt=0)] = 30.0
    """Rates are means over so many seconds."""
    live_runs: Annotated[int, Field(ge=1)] = 10_000
    """Runs kept; the longest silent are forgotten first."""
