"""Notices of the cloud about this machine: one port, `Notices`, one class per provider.

Each speaks its provider's metadata service, which answers on a link-local address inside the
machine and needs no credentials:

- AWS, spot instances: `spot/instance-action` (IMDSv2), 404 until about two minutes before.
- GCP: `instance/preempted` (30 s before) and `instance/maintenance-event` (60 s before; live
  migrations are not worth leaving for).
- Azure: `scheduledevents`, which lists the events of all machines of a set by name; a `Freeze` of a
  few seconds is not worth leaving for.
"""

from __future__ import annotations

import http.client
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import Message
from email.utils import parsedate_to_datetime
from typing import Literal, Protocol

import structlog
from pydantic import AwareDatetime, BaseModel, Field, ValidationError

log = structlog.get_logger(__name__)

Provider = Literal["none", "aws", "gcp", "azure"]

_TIMEOUT_S = 2.0
_ANSWER_BYTES = 256 * 1024
_AWS_TOKEN_TTL_S = 21_600
_GCP_PREEMPTED_S = 30.0
_GCP_MAINTENANCE_S = 60.0
_AZURE_LEAVING = {"Reboot", "Redeploy", "Preempt", "Terminate"}


@dataclass(frozen=True, slots=True)
class Notice:
    """The machine will go in `left_s` seconds."""

    reason: str
    left_s: float


class NoticesUnavailableError(Exception):
    """The provider does not answer, or not as it documents."""


class Notices(Protocol):
    """Where notices come from."""

    def read(self, now: datetime) -> Notice | None:
        """The notice that stands, if any. Raises NoticesUnavailableError."""


def open_notices(provider: Provider, url: str | None) -> Notices | None:
    """The provider's notices, None for `none`. `url` replaces the address of its service."""
    match provider:
        case "aws":
            return AwsNotices(_Service(url or "http://169.254.169.254"))
        case "gcp":
            return GcpNotices(_Service(url or "http://metadata.google.internal"))
        case "azure":
            return AzureNotices(_Service(url or "http://169.254.169.254"))
        case "none":
            return None


class _Service:
    """A metadata service. It is never asked through a proxy."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def request(
        self, path: str, headers: Mapping[str, str], method: str = "GET"
    ) -> tuple[int, Message, str]:
        """Status, headers and body of the answer."""
        request = urllib.request.Request(  # noqa: S310 -- the settings allow http(s) alone
            self._url + path, headers=dict(headers), method=method
        )
        try:
            with self._opener.open(request, timeout=_TIMEOUT_S) as answer:
                return answer.status, answer.headers, answer.read(_ANSWER_BYTES).decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers, ""
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise NoticesUnavailableError(f"{self._url}{path}: {error}") from None

    def text(self, path: str, headers: Mapping[str, str]) -> str:
        """The body of an answer that is 200."""
        status, _, body = self.request(path, headers)
        if status != http.client.OK:
            raise NoticesUnavailableError(f"{self._url}{path}: status {status}")
        return body


class _SpotAction(BaseModel):
    action: str
    time: AwareDatetime


class AwsNotices:
    """Spot interruptions, by IMDSv2."""

    def __init__(self, service: _Service) -> None:
        self._service = service
        self._token: str | None = None

    def read(self, now: datetime) -> Notice | None:
        """Two minutes ahead; a hibernation begins at once."""
        status, body = self._ask()
        if status == http.client.UNAUTHORIZED:  # the token's time is over
            self._token = None
            status, body = self._ask()
        if status == http.client.NOT_FOUND:
            return None
        if status != http.client.OK:
            raise NoticesUnavailableError(f"spot/instance-action: status {status}")
        try:
            found = _SpotAction.model_validate_json(body)
        except ValidationError:
            raise NoticesUnavailableError("spot/instance-action: not as documented") from None
        left_s = (found.time - now).total_seconds()
        return Notice(f"aws will {found.action} this spot instance", max(0.0, left_s))

    def _ask(self) -> tuple[int, str]:
        if self._token is None:
            ttl = {"X-aws-ec2-metadata-token-ttl-seconds": str(_AWS_TOKEN_TTL_S)}
            status, _, token = self._service.request("/latest/api/token", ttl, "PUT")
            if status != http.client.OK:
                raise NoticesUnavailableError(f"api/token: status {status}")
            self._token = token
        status, _, body = self._service.request(
            "/latest/meta-data/spot/instance-action", {"X-aws-ec2-metadata-token": self._token}
        )
        return status, body


class GcpNotices:
    """Preemptions, and host maintenance that ends the machine."""

    def __init__(self, service: _Service) -> None:
        self._service = service

    def read(self, now: datetime) -> Notice | None:  # noqa: ARG002 -- it tells no time
        """The shortest time that is documented."""
        if self._ask("preempted") == "TRUE":
            return Notice("gcp preempts this machine", _GCP_PREEMPTED_S)
        if self._ask("maintenance-event") == "TERMINATE_ON_HOST_MAINTENANCE":
            return Notice("gcp ends this machine for host maintenance", _GCP_MAINTENANCE_S)
        return None

    def _ask(self, name: str) -> str:
        path = f"/computeMetadata/v1/instance/{name}"
        status, headers, body = self._service.request(path, {"Metadata-Flavor": "Google"})
        if status != http.client.OK or headers.get("Metadata-Flavor") != "Google":
            raise NoticesUnavailableError(f"{name}: status {status}")
        return body.strip()


class _AzureEvent(BaseModel):
    kind: str = Field(alias="EventType")
    machines: list[str] = Field(alias="Resources")
    not_before: str = Field(alias="NotBefore")


class _AzureEvents(BaseModel):
    events: list[_AzureEvent] = Field(alias="Events")


class AzureNotices:
    """Scheduled events that name this machine."""

    def __init__(self, service: _Service) -> None:
        self._service = service
        self._name: str | None = None

    def read(self, now: datetime) -> Notice | None:
        """The one that comes first; one that has begun has no time."""
        if self._name is None:
            path = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
            self._name = self._service.text(path, {"Metadata": "true"}).strip()
        body = self._service.text(
            "/metadata/scheduledevents?api-version=2020-07-01", {"Metadata": "true"}
        )
        try:
            found = _AzureEvents.model_validate_json(body).events
            notices = [
                Notice(f"azure plans to {event.kind.lower()} this machine", _left_s(event, now))
                for event in found
                if self._name in event.machines and event.kind in _AZURE_LEAVING
            ]
        except (ValidationError, ValueError, TypeError):
            raise NoticesUnavailableError("scheduledevents: not as documented") from None
        return min(notices, key=lambda notice: notice.left_s, default=None)


def _left_s(event: _AzureEvent, now: datetime) -> float:
    """Seconds until it may begin. Raises ValueError or TypeError: its time is none."""
    if not event.not_before:
        return 0.0
    return max(0.0, (parsedate_to_datetime(event.not_before) - now).total_seconds())


class NoticeWatch:
    """Asks in a thread of its own, every `interval_s`, until there is a notice or `ended` is set.

    `found` is called with the notice, once, in that thread.
    """

    def __init__(
        self,
        notices: Notices,
        interval_s: float,
        found: Callable[[Notice], None],
        ended: threading.Event,
    ) -> None:
        self._notices = notices
        self._interval_s = interval_s
        self._found = found
        self._ended = ended
        self._answers = True
        self._thread = threading.Thread(target=self._watch, name="notices", daemon=True)

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def read(self) -> Notice | None:
        """The present notice; None also if the provider does not answer, which is logged once."""
        try:
            notice = self._notices.read(datetime.now(UTC))
        except NoticesUnavailableError as error:
            if self._answers:
                log.warning("notices.unavailable", error=str(error))
            self._answers = False
            return None
        self._answers = True
        return notice

    def _watch(self) -> None:
        while not self._ended.is_set():
            notice = self.read()
            if notice is not None:
                log.warning("notices.found", reason=notice.reason, left_s=round(notice.left_s, 1))
                self._found(notice)
                return
            self._ended.wait(self._interval_s)
