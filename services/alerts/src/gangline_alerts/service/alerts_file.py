"""The file of alerts: thresholds, receivers and routes; a changed file is read again.

YAML, or TOML with the same fields:

    rules:
      queue-wait: {above_s: 3600}
      cluster-utilization: {enabled: false}
      teams:
        nlp: {queue-wait: {above_s: 600}}
    receivers:
      team-hook: {url: "https://hooks.example/gangline", signing_key: team-hook, teams: [nlp]}
      on-call: {kind: slack, url_secret: slack-url}
    routes:
      - {to: on-call, severity: critical}

docs/guides/alerts.md has every field.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Self

import structlog
from pydantic import BeforeValidator, Field, ValidationError, model_validator

from gangline_alerts.core.policy.routes import Receivers, Route
from gangline_alerts.core.policy.rules import Rules, by_rule
from gangline_alerts.service.targets import Target, Webhook
from gangline_schemas.alerts import MAX_RECEIVERS
from gangline_schemas.base import Identifier, Model, field_errors
from gangline_service.config_file import ConfigFileError, read_config_file

log = structlog.get_logger(__name__)


def _by_kind(value: Any) -> Any:
    """A receiver without a kind is a webhook."""
    if not isinstance(value, dict):
        return value
    return {
        name: {"kind": Webhook.model_fields["kind"].default, **one}
        if isinstance(one, dict)
        else one
        for name, one in value.items()
    }


class AlertsFile(Model):
    """The content of the file; all of it may be left out."""

    rules: Annotated[Rules, BeforeValidator(by_rule)] = Rules()
    receivers: Annotated[dict[Identifier, Target], BeforeValidator(_by_kind)] = Field(
        default_factory=dict, max_length=MAX_RECEIVERS
    )
    routes: tuple[Route, ...] = Field(default=(), max_length=1000)

    @model_validator(mode="after")
    def _routes_end_somewhere(self) -> Self:
        for number, route in enumerate(self.routes, start=1):
            if route.to not in self.receivers:
                known = ", ".join(sorted(self.receivers)) or "none"
                raise ValueError(
                    f"routes: number {number} goes to '{route.to}', which is no receiver (known: "
                    f"{known})"
                )
        return self

    def core(self) -> Receivers:
        """The part that decisions use: no address, no secret."""
        teams = {name: frozenset(one.teams) for name, one in self.receivers.items()}
        return Receivers(self.routes, teams)


def read_alerts(path: Path) -> AlertsFile:
    """The file's content. Raises ConfigFileError with every problem found."""
    content = read_config_file(path)
    try:
        return AlertsFile.model_validate({} if content is None else content)
    except ValidationError as error:
        problems = [
            item.message if item.field == "(body)" else f"{item.field}: {item.message}"
            for item in field_errors(error, model=AlertsFile)
        ]
        raise ConfigFileError(f"{path}: " + "; ".join(problems)) from None


class WatchedFile:
    """The file while the service runs; used by one thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = self._seen = _stamp(path)

    def renewed(self) -> AlertsFile | None:
        """The content, if the file changed since it was last read, and is valid.

        A change is read at the second call that sees it, so that its writer has ended. A wrong file
        is logged once, and the content that was read before stays.
        """
        stamp, before = _stamp(self._path), self._seen
        self._seen = stamp
        if stamp == self._read or stamp != before:
            return None
        self._read = stamp
        try:
            found = read_alerts(self._path)
        except ConfigFileError as error:
            log.warning("the changed file of alerts is wrong; the old one stays", error=str(error))
            return None
        log.info("the changed file of alerts holds", path=str(self._path))
        return found


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """Differs after each change; None: the file cannot be looked at."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
