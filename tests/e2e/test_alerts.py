"""Alerts and notifications, from a job to a webhook receiver that fails twice."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import re
import signal
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from gangline.sdk import Gangline
from gangline_schemas.events.alerts import NotificationDue
from support.fixtures.platform import HOOK_KEY, RunningPlatform
from support.waiting import wait_until

SERVICE = "alerts-0"
KEY = base64.b64decode(HOOK_KEY.removeprefix("whsec_"))


@dataclass
class Receiver:
    """A webhook receiver. It refuses the first two tries of each notification."""

    requests: list[tuple[dict[str, str], bytes]] = field(default_factory=list)

    def take(self, headers: dict[str, str], body: bytes) -> int:
        self.requests.append((headers, body))
        return 503 if self.tries(headers["webhook-id"]) <= 2 else 204

    def tries(self, notification: str) -> int:
        return sum(headers["webhook-id"] == notification for headers, _ in self.requests)

    def due(self) -> list[NotificationDue]:
        """Each notification once, as it was first sent."""
        found = {headers["webhook-id"]: verified(headers, body) for headers, body in self.requests}
        return [NotificationDue.model_validate(event["data"]) for event in found.values()]


def verified(headers: dict[str, str], body: bytes) -> dict[str, Any]:
    """The CloudEvent, once its signature was checked as Standard Webhooks says."""
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    digest = base64.b64encode(hmac.new(KEY, signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{digest}"
    event: dict[str, Any] = json.loads(body)
    assert event["id"] == headers["webhook-id"]
    return event


@contextmanager
def receiver(port: int) -> Iterator[Receiver]:
    found = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            self.send_response(found.take(headers, body))
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()


def test_a_job_s_end_reaches_a_receiver_that_fails_twice_also_over_a_kill(
    platform: RunningPlatform, client: Gangline
) -> None:
    with receiver(platform.hook_port) as hook:
        job_id = client.submit(
            {
                "name": "notified",
                "team": "default",
                "run": "true",
                "resources": {"gpus": 1},
                "notify": [{"on": ["succeeded", "failed"], "webhook": "team-hook"}],
            }
        ).job_id

        wait_until("the first try", lambda: hook.requests)
        os.kill(platform.pid(SERVICE), signal.SIGKILL)

        def delivered() -> Any:
            found = [one for one in client.notifications() if one.about == job_id]
            return found if found and found[0].state == "delivered" else None

        (sent,) = wait_until("the delivery", delivered)
        assert (sent.target, sent.team) == ("team-hook", "default")
        assert sent.text == "HTTP 204"
        (due,) = [one for one in hook.due() if one.job and one.job.job_id == job_id]
        assert due.job is not None
        assert due.job.state == "succeeded"
        assert hook.tries(due.notification) >= max(3, sent.tries)
    shown = metrics(platform)
    assert re.search(
        r'^gangline_notifications_total\{.*outcome="delivered".*\} ', shown, re.MULTILINE
    )
    assert re.search(r"^gangline_gpus_offered [0-9.]+$", shown, re.MULTILINE)


def test_a_job_that_waits_raises_an_alert_once_and_resolves_it_once(
    platform: RunningPlatform, client: Gangline
) -> None:
    def submit(name: str, **fields: object) -> str:
        spec = {"name": name, "team": "small", "resources": {"gpus": 1}, "priority": 10, **fields}
        return client.submit(spec).job_id

    with receiver(platform.hook_port) as hook:
        first = submit("first", run="sleep 1000")
        wait_until("its start", lambda: client.get(first).state == "running")
        waits = submit("waits", run="true")

        def alerts(*, ended: bool = False) -> list[Any]:
            return [one for one in client.alerts(ended=ended) if one.subject == waits]

        (raised,) = wait_until("the alert", alerts)
        assert (raised.rule, raised.team, raised.threshold) == ("queue-wait", "small", 1)
        assert f"gangline explain {waits}" in raised.message
        wait_until("the notification", lambda: told(hook, waits))
        client.cancel(first)
        wait_until("its end", lambda: alerts() == [])
        (over,) = alerts(ended=True)
        assert (over.number, over.targets) == (raised.number, ["team-hook"])
        wait_until("both notifications", lambda: len(told(hook, waits)) == 2)
        assert told(hook, waits) == [("raised", raised.number), ("resolved", raised.number)]
        wait_until("the other job's end", lambda: client.get(waits).ended)


def metrics(platform: RunningPlatform) -> str:
    """The service's /metrics."""
    bound = platform.data_dir / "run" / "health" / f"{SERVICE}.json"
    url = json.loads(bound.read_text(encoding="utf-8"))["url"]
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        found: str = answer.read().decode()
    return found


def told(hook: Receiver, subject: str) -> list[tuple[str, int]]:
    """The receiver's news of a subject, in order."""
    return [
        (kind, one.number)
        for due in hook.due()
        for kind, texts in (("raised", due.raised), ("resolved", due.resolved))
        for one in texts
        if one.subject == subject
    ]
