"""Settings of the alerts service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from gangline_alerts.core.policy.timing import Timing
from gangline_service.settings import DecidingSettings


class AlertSettings(DecidingSettings):
    """The settings of the alerts service."""

    section: ClassVar[str] = "alerts"

    alerts_file: Path | None = None
    """YAML or TOML file of rules, receivers and routes; see `alerts_file.read_alerts`."""
    alert_secrets_dir: Path | None = None
    """Folder with a file for each secret that a receiver names: signing keys, passwords."""
    alert_group_s: Annotated[float, Field(ge=0, le=3600)] = 30.0
    """Alerts of one rule and team wait so long for others, and are sent together."""
    alert_again_s: Annotated[float, Field(ge=0, le=86_400)] = 300.0
    """Least time between two notifications of one rule and team to one receiver."""
    alert_settle_s: Annotated[float, Field(ge=0, le=3600)] = 15.0
    """After a start, and after late input, nothing is judged for so long."""
    notify_retry_s: Annotated[float, Field(gt=0, le=3600)] = 5.0
    """The wait before the second try of a delivery; it doubles each time, up to an hour."""
    notify_tries: Annotated[int, Field(ge=1, le=100)] = 12
    """So often a delivery is tried: with the defaults for about 2.4 hours."""

    def timing(self) -> Timing:
        """The form that decisions use."""
        return Timing(
            settle_s=self.alert_settle_s,
            group_s=self.alert_group_s,
            again_s=self.alert_again_s,
            first_retry_s=self.notify_retry_s,
            tries=self.notify_tries,
        )
