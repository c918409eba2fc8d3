"""Alerts, silences and notifications."""

from __future__ import annotations

from collections.abc import Sequence

from gangline.sdk.calls import Calls
from gangline_schemas.api.alerts import (
    Alert,
    AlertList,
    NotificationList,
    SentNotification,
    Silence,
    SilenceList,
)


class Alerts(Calls):
    """Alerts, silences and notifications."""

    def alerts(self, *, ended: bool = False, limit: int = 200) -> Sequence[Alert]:
        """Alerts that hold, with `ended` also resolved ones; the newest first."""
        params = {"all": "true" if ended else None, "limit": limit}
        return self._read(AlertList, "GET", "/v1/alerts", params=params).alerts

    def silence(
        self,
        alert: int | None = None,
        *,
        rule: str | None = None,
        team: str | None = None,
        subject: str | None = None,
        hours: float = 4,
        comment: str = "",
    ) -> Silence:
        """Send no notifications of these alerts for so long."""
        body = {"alert": alert, "rule": rule, "team": team, "subject": subject}
        given = {name: value for name, value in body.items() if value is not None}
        body_sent = {**given, "hours": hours, "comment": comment}
        return self._read(Silence, "POST", "/v1/silences", body=body_sent)

    def silences(self) -> Sequence[Silence]:
        """Silences that hold, by number."""
        return self._read(SilenceList, "GET", "/v1/silences").silences

    def unsilence(self, number: int) -> Silence:
        """End a silence: its alerts that still hold are notified."""
        return self._read(Silence, "POST", f"/v1/silences/{number}/end")

    def notifications(self, *, limit: int = 100) -> Sequence[SentNotification]:
        """Notifications and their deliveries, the newest first."""
        params = {"limit": limit}
        return self._read(NotificationList, "GET", "/v1/notifications", params=params).notifications
