"""Settings of the quota service."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from gangline_service.settings import DecidingSettings


class QuotaSettings(DecidingSettings):
    """What the quota service can be told."""

    section: ClassVar[str] = "quota"

    teams_file: Path | None = None
    """YAML or TOML file with the list of teams; see `teams_file.read_teams`."""
