"""The audit log: changes through the gateway and refusals, each with its user.

1. Each request has a `Note`. Its route writes the team and the target of a change there.
2. After the answer, `AuditLog.record` publishes changes, refusals (403), tokens that are unknown
   (401) and sign-ins to gangline.audit. The tracker keeps them in ClickHouse.

Records hold names and ids, never bodies, headers, queries or tokens. Refusals are limited by user,
so that no user fills the log with them, and so are failed sign-ins of unknown users. Requests
to MLflow are recorded only when they are refused.
"""

from __future__ import annotations

import uuid
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime

import structlog
from starlette.types import Scope

from gangline_bus.codec import encode
from gangline_bus.ports import BusError, Writer
from gangline_bus.topics import TopicNames
from gangline_gateway.problems import ProblemError
from gangline_gateway.publish import SOURCE
from gangline_gateway.route_rules import rule_of
from gangline_gateway.user_limits import RequestLimits, RequestRates
from gangline_schemas.access import Via
from gangline_schemas.catalog import Topic
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.access import AUDIT_SUBJECT, ActionAudited
from gangline_service.redaction import redact_text
from gangline_service.tokens import Principal

log = structlog.get_logger(__name__)

REFUSALS = RequestLimits(per_s=0.5, burst=30)
"""Recorded refusals of one user; further ones are left out."""
ACCESS = "access"
"""The action of a refused request that would have changed nothing."""
_REFUSED = frozenset({401, 403})
_CHARS = 256


@dataclass(slots=True)
class Note:
    """The facts of a request for the audit log."""

    action: str = ""
    """Instead of that of its route."""
    team: str = ""
    target: str = ""
    user: str = ""
    via: Via | None = None
    ignored: bool = False
    """It changes nothing, although its route could."""


_NOTE: ContextVar[Note | None] = ContextVar("audit_note", default=None)


def begin() -> Note:
    """The note of a new request."""
    found = Note()
    _NOTE.set(found)
    return found


def note() -> Note:
    """The note of the current request, in its tasks and threads."""
    return _NOTE.get() or Note()


class AuditLog:
    """Publishes records. It never delays or fails a request: a lost record is logged."""

    def __init__(self, writer: Writer, names: TopicNames) -> None:
        self._writer = writer
        self._topic = names.name(Topic.AUDIT)
        self._refusals = RequestRates(REFUSALS)

    def record(self, scope: Scope, known: Note, status: int, location: str, trace: str) -> None:
        """Publishes the record of a request that was answered, if it belongs into the log.

        `location`: the header of its answer, which names what was created.
        """
        event = _event(scope, known, status, location, trace)
        if event is None:
            return
        unknown = event.outcome == "failed" and not event.user  # a sign-in that anybody may try
        if (event.outcome == "refused" or unknown) and not self._counted(event.user):
            return
        envelope = Envelope(
            id=str(uuid.uuid4()), source=SOURCE, time=datetime.now(UTC), subject=AUDIT_SUBJECT,
            data=event,
        )  # fmt: skip
        try:
            self._writer.send(encode(envelope, topic=self._topic), _delivered)
        except BusError as error:
            _delivered(error)

    def _counted(self, user: str) -> bool:
        try:
            self._refusals.count(user)
        except ProblemError:
            return False
        return True


def _delivered(error: BusError | None) -> None:
    if error is not None:
        log.error("audit record lost", error=type(error).__name__)


def _event(
    scope: Scope, known: Note, status: int, location: str, trace: str
) -> ActionAudited | None:
    route: str = getattr(scope.get("route"), "path", "")
    principal: Principal | None = scope.get("state", {}).get("principal")
    refused = status in _REFUSED
    action = known.action or (rule_of(scope["method"], route).action if route else None)
    if action is None and refused and principal is not None:
        action = ACCESS
    if not action or (known.ignored and not refused) or not status:
        return None
    target = known.target or _target(scope, location)
    if action == ACCESS and route:
        target = f"{scope['method']} {route}"
    client = scope.get("client")
    return ActionAudited(
        user=_text(known.user or (principal.name if principal else "")),
        role=principal.role.value if principal else "",
        via=known.via or (principal.via if principal else "none"),
        token=principal.token_id if principal else "",
        action=action,
        team=known.team,
        target=_text(target),
        outcome="refused" if refused else "done" if status < 400 else "failed",
        status=status,
        address=_text(client[0] if client else ""),
        trace=trace,
    )


def _target(scope: Scope, location: str) -> str:
    parts = [str(value) for value in scope.get("path_params", {}).values()]
    return "/".join(parts) or location.rpartition("/")[2]


def _text(value: str) -> str:
    """Printable, short, and without what looks like a credential."""
    printable = "".join(char if char.isprintable() else "\ufffd" for char in value)
    return redact_text(printable)[:_CHARS]
