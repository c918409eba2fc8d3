"""Types, fields and enum values of a later version: counted, and logged once each."""

from __future__ import annotations

from typing import Literal

import structlog
from opentelemetry import metrics

log = structlog.get_logger(__name__)

_UNKNOWN = metrics.get_meter(__name__).create_counter(
    "gangline.bus.unknown",
    description="Records of logs and streams with a type, field or enum value of a later version",
)
_LOGGED = 100
_logged: set[tuple[str, str, str]] = set()


def count_unknown(topic: str, event_type: str, what: Literal["type", "field", "value"]) -> None:
    """Count one record: its type is unknown, one of its fields, or the value of an enum."""
    _UNKNOWN.add(1, {"topic": topic, "what": what})
    kind = (topic, event_type, what)
    if kind not in _logged and len(_logged) < _LOGGED:
        _logged.add(kind)
        log.warning(
            "a later version wrote a type or field that this one does not know; finish the upgrade",
            topic=topic,
            type=event_type[:100],
            unknown=what,
        )
