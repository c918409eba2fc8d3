"""Settings of the quota service."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from gangline_schemas.data_use import ApprovalRule
from gangline_service.settings import DecidingSettings


class QuotaSettings(DecidingSettings):
    """The settings of the quota service."""

    section: ClassVar[str] = "quota"

    teams_file: Path | None = None
    """YAML or TOML file with the list of teams; see `teams_file.read_teams`."""
    data_approvals: ApprovalRule = ApprovalRule.OFF
    """Which jobs need an approval of their data: off, named, required; see data_use.py."""
