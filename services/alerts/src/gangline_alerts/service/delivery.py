"""Delivers notifications: webhooks, Slack-shaped webhooks, and mail.

A delivery may be made twice, after a crash. Each carries the notification's id, by which a
receiver can drop the second. Nothing of a receiver's answer but its status, and no secret, is
logged or put into an event.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import http.client
import json
import smtplib
import ssl
import time
from collections.abc import Callable, Mapping
from email.message import EmailMessage
from urllib.parse import urlsplit

import structlog
from opentelemetry import metrics

from gangline_alerts.core.model import Deliver, Delivered, Undelivered
from gangline_alerts.service import texts
from gangline_alerts.service.addresses import AddressRefusedError
from gangline_alerts.service.http_post import TOTAL_S, cut_after, post
from gangline_alerts.service.targets import (
    Email,
    SecretMissingError,
    Secrets,
    Slack,
    Target,
    Webhook,
)
from gangline_schemas.events.alerts import NotificationDue

log = structlog.get_logger(__name__)

MAIL_S = 60.0
"""A mail takes at most so long after the greeting of its server."""
SOURCE = "/gangline/alerts"
CLOUD_EVENT = "application/cloudevents+json; charset=utf-8"
_DELIVERIES = metrics.get_meter(__name__).create_counter(
    "gangline.notifications",
    description="Tries to deliver a notification, by kind of receiver and outcome",
)


class _RefusedError(Exception):
    """The receiver answered, and did not take it. `final`: it never will."""

    def __init__(self, reason: str, *, final: bool) -> None:
        super().__init__(reason)
        self.final = final


class Deliverer:
    """Executes the effects of `AlertDecider`; safe to call from several threads."""

    def __init__(
        self,
        receivers: Mapping[str, Target],
        secrets: Secrets,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._receivers = receivers
        self._secrets = secrets
        self._clock = clock

    def renew(self, receivers: Mapping[str, Target]) -> None:
        """From now on these are the receivers."""
        self._receivers = receivers

    def __call__(self, key: str, effect: object) -> Delivered | Undelivered:
        """The outcome of one try. Raises TypeError for an effect that is none of this service."""
        if not isinstance(effect, Deliver):
            raise TypeError(f"{key}: {type(effect).__name__} is not an effect of alerts")
        due = effect.due
        target = self._receivers.get(due.target)
        began = time.monotonic()
        outcome: Delivered | Undelivered
        try:
            if target is None:
                raise _RefusedError(f"there is no receiver '{due.target}'", final=True)
            answer = self._send(target, due)
            outcome = Delivered(round(time.monotonic() - began, 3), answer)
        except _RefusedError as error:
            outcome = Undelivered(str(error), error.final)
        except (SecretMissingError, AddressRefusedError) as error:
            outcome = Undelivered(str(error))
        except (OSError, http.client.HTTPException) as error:
            outcome = Undelivered(_reason(error))
        except ValueError:
            outcome = Undelivered("its URL or an address is not valid")
        kind = "none" if target is None else target.kind
        name = "delivered" if isinstance(outcome, Delivered) else "undelivered"
        _DELIVERIES.add(1, {"kind": kind, "outcome": name})
        log.info("notification", notification=due.notification, target=due.target, outcome=name)
        return outcome

    def _send(self, target: Target, due: NotificationDue) -> str:
        match target:
            case Webhook():
                body = cloud_event(due)
                headers = {"Content-Type": CLOUD_EVENT}
                if target.signing_key is not None:
                    key = self._secrets.read(target.signing_key)
                    headers |= signature(key, due.notification, int(self._clock()), body)
                return _posted(target.url, body, headers, target.allow_private)
            case Slack():
                text = "\n".join((f"*{texts.title(due)}*", *texts.lines(due)))
                body = json.dumps({"text": _escaped(text)}).encode()
                url = self._secrets.read(target.url_secret)
                if urlsplit(url).scheme not in {"http", "https"}:
                    raise _RefusedError(f"the secret '{target.url_secret}' is no URL", final=False)
                headers = {"Content-Type": "application/json"}
                return _posted(url, body, headers, target.allow_private)
            case Email():
                password = None
                if target.password is not None:
                    password = self._secrets.read(target.password)
                refused = _mail(target, due, password)
                count = len(target.to)
                return f"SMTP, {refused} of {count} addresses refused" if refused else "SMTP"


def cloud_event(due: NotificationDue) -> bytes:
    """A CloudEvent in structured mode, so that a signature of the body covers its attributes."""
    return json.dumps(
        {
            "specversion": "1.0",
            "id": due.notification,
            "source": SOURCE,
            "type": due.type,
            "time": due.due_at.isoformat(),
            "subject": due.job.job_id if due.job is not None else due.team or "cluster",
            "datacontenttype": "application/json",
            "data": due.data(),
        }
    ).encode()


def signature(key: str, message_id: str, at: int, body: bytes) -> dict[str, str]:
    """The headers of Standard Webhooks 1.0: HMAC-SHA256 over id, Unix time and body."""
    signed = b".".join((message_id.encode(), str(at).encode(), body))
    digest = hmac.new(_key_bytes(key), signed, hashlib.sha256).digest()
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(at),
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }


def _key_bytes(key: str) -> bytes:
    """Keys of Standard Webhooks are `whsec_` and base64; others are taken as they are."""
    if key.startswith("whsec_"):
        try:
            return base64.b64decode(key.removeprefix("whsec_"), validate=True)
        except ValueError:
            pass
    return key.encode()


def _posted(url: str, body: bytes, headers: Mapping[str, str], allow_private: bool) -> str:  # noqa: FBT001
    status = post(url, body, {"User-Agent": "Gangline", **headers}, allow_private=allow_private)
    if 200 <= status < 300:
        return f"HTTP {status}"
    # 410: the receiver is gone for good. Other errors may be fixed there.
    raise _RefusedError(f"the receiver answered HTTP {status}", final=status == 410)


def _escaped(text: str) -> str:
    """Slack's own three escapes: no text of a job becomes a link or a mention."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _mail(target: Email, due: NotificationDue, password: str | None) -> int:
    """How many addresses its server refused; if all, it raises SMTPRecipientsRefused."""
    message = EmailMessage()
    message["Subject"] = texts.title(due)
    message["From"] = target.sender
    message["To"] = ", ".join(target.to)
    message["Message-ID"] = f"<{due.notification}.gangline@{target.sender.partition('@')[2]}>"
    message.set_content("\n".join(texts.lines(due)) + "\n")
    context = ssl.create_default_context()
    link: smtplib.SMTP
    if target.tls == "tls":
        link = smtplib.SMTP_SSL(target.host, target.port, timeout=TOTAL_S, context=context)
    else:
        link = smtplib.SMTP(target.host, target.port, timeout=TOTAL_S)
    with contextlib.closing(link), cut_after(MAIL_S, lambda: link.sock):
        if target.tls == "starttls":
            link.starttls(context=context)
        if target.user is not None:
            link.login(target.user, password or "")
        refused = link.send_message(message)
        with contextlib.suppress(OSError):  # the mail is accepted, whatever comes after it
            link.quit()
        return len(refused)


def _reason(error: Exception) -> str:
    """The error without the text of the other side, which may repeat a secret."""
    if isinstance(error, smtplib.SMTPResponseException):
        return f"the mail server answered {error.smtp_code}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {error.reason or type(error).__name__}"
    if isinstance(error, OSError) and error.strerror:
        return f"not reachable: {error.strerror}"
    return f"not reachable: {type(error).__name__}"


def share_of(effect: object) -> str:
    """The receiver of an effect: a slow one does not hold up the others."""
    return effect.due.target if isinstance(effect, Deliver) else ""
