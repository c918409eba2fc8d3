"""Settings of the studies service."""

from __future__ import annotations

from typing import ClassVar

from gangline_service.settings import DecidingSettings


class StudySettings(DecidingSettings):
    """The settings of the studies service."""

    section: ClassVar[str] = "studies"
