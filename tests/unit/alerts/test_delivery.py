"""Deliveries by webhook, Slack and mail to real servers, and the receivers that are refused."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from email import message_from_bytes
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from gangline_alerts.core.model import Deliver, Delivered, Undelivered
from gangline_alerts.service import delivery, http_post
from gangline_alerts.service.addresses import is_public
from gangline_alerts.service.alerts_file import read_alerts
from gangline_alerts.service.delivery import Deliverer
from gangline_alerts.service.targets import Email, Secrets, Slack, Target, Webhook
from gangline_schemas.alerts import JobText
from gangline_schemas.events.alerts import NotificationDue
from gangline_schemas.job import JobState
from gangline_service.config_file import ConfigFileError

AT = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)
DUE = NotificationDue(
    notification="n1",
    target="t",
    team="nlp",
    due_at=AT,
    job=JobText(
        job_id="a", name="a", team="nlp", previous=JobState.RUNNING, state=JobState.FAILED,
        reason="<!channel> & more", changed_at=AT,
    ),
)  # fmt: skip


@contextmanager
def http_server(status: int) -> Iterator[tuple[str, list[tuple[dict[str, str], bytes]]]]:
    taken: list[tuple[dict[str, str], bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            taken.append(({name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(status)
            self.send_header("location", "http://169.254.169.254/")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with serving(HTTPServer(("127.0.0.1", 0), Handler)) as port:
        yield f"http://127.0.0.1:{port}/hook?x=1", taken


@contextmanager
def serving(server: socketserver.BaseServer) -> Iterator[int]:
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield server.server_address[1]  # type: ignore[misc]
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def deliver(tmp_path: Path) -> Callable[..., Any]:
    """Delivers `DUE` to a receiver, with these secrets."""

    def send(target: Target, **secrets: str) -> Delivered | Undelivered:
        for name, value in secrets.items():
            path = tmp_path / name
            path.write_text(f"{value}\n")
            path.chmod(0o600)
        return Deliverer({"t": target}, Secrets(tmp_path), clock=AT.timestamp)("n1:0", Deliver(DUE))

    return send


def test_a_webhook_gets_a_signed_cloud_event(deliver: Callable[..., Any]) -> None:
    with http_server(200) as (url, taken):
        found = deliver(Webhook(url=url, signing_key="key", allow_private=True), key="secret")
    assert found.answer == "HTTP 200"
    ((headers, body),) = taken
    signed = b"n1.%d." % int(AT.timestamp()) + body
    digest = base64.b64encode(hmac.new(b"secret", signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{digest}"
    event = json.loads(body)
    assert (event["type"], event["id"], event["subject"]) == ("notification.due", "n1", "a")
    assert NotificationDue.model_validate(event["data"]) == DUE
    assert b"secret" not in body


def test_slack_gets_a_text_without_markup_of_a_job(deliver: Callable[..., Any]) -> None:
    with http_server(200) as (url, taken):
        deliver(Slack(kind="slack", url_secret="url", allow_private=True), url=url)
    text = json.loads(taken[0][1])["text"]
    assert "&lt;!channel&gt; &amp; more" in text
    assert "job a of team nlp is failed" in text


@pytest.mark.parametrize(
    ("status", "final"), [(302, False), (404, False), (410, True), (500, False)]
)
def test_what_a_receiver_refuses_is_tried_again_unless_it_is_gone(
    deliver: Callable[..., Any], status: int, final: bool
) -> None:
    with http_server(status) as (url, taken):
        found = deliver(Webhook(url=url, allow_private=True))
    assert found == Undelivered(f"the receiver answered HTTP {status}", final)
    assert len(taken) == 1, "a redirect is not followed"


@pytest.mark.parametrize("kind", ["webhook", "email"])
def test_a_receiver_that_never_ends_its_answer_is_cut_off(
    deliver: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(http_post, "TOTAL_S", 0.3)
    monkeypatch.setattr(delivery, "MAIL_S", 0.3)
    stopping = threading.Event()

    class Dripping(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            try:
                if kind == "email":
                    self.request.sendall(b"220 here\r\n")
                while not stopping.wait(0.05):
                    self.request.sendall(b"x")
            except OSError:
                return

    with serving(socketserver.ThreadingTCPServer(("127.0.0.1", 0), Dripping)) as port:
        targets: dict[str, Target] = {
            "webhook": Webhook(url=f"http://127.0.0.1:{port}/", allow_private=True),
            "email": Email(
                kind="email", to=("a@example.org",), sender="b@example.org", host="127.0.0.1",
                port=port, tls="none",
            ),
        }  # fmt: skip
        found = deliver(targets[kind])
        stopping.set()
    assert isinstance(found, Undelivered)


def test_private_addresses_and_missing_secrets_are_named(deliver: Callable[..., Any]) -> None:
    private = deliver(Webhook(url="http://localhost:9/"))
    assert "not public" in private.reason
    missing = deliver(Webhook(url="http://127.0.0.1:9/", signing_key="nope", allow_private=True))
    assert "'nope'" in missing.reason
    away = deliver(Webhook(url="http://127.0.0.1:1/", allow_private=True))
    assert away.reason == "not reachable: Connection refused"


@pytest.mark.parametrize(
    "url",
    [
        "https://secret.example:port/x", "http://[secret", "ftp://secret/", "http://secret\x01/",
        "secret", "http://secret.invalid/\u00e9", "http://127.0.0.1:1/secret",
        f"http://{'secret' * 50}.example/",
    ],
)  # fmt: skip
def test_a_wrong_url_ends_nothing_and_is_not_repeated(
    deliver: Callable[..., Any], url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = deliver(Slack(kind="slack", url_secret="url", allow_private=True), url=url)
    assert isinstance(found, Undelivered)
    assert "secret" not in found.reason.replace("the secret 'url'", "")
    assert "secret" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True), ("2606:4700::1111", True), ("127.0.0.1", False), ("10.1.2.3", False),
        ("169.254.169.254", False), ("100.64.0.1", False), ("0.0.0.0", False), ("::1", False),
        ("fe80::1%eth0", False), ("fd00::1", False), ("::ffff:10.0.0.1", False),
        ("64:ff9b::a00:1", False), ("2002:a00:1::", False), ("224.0.0.1", False),
        ("255.255.255.255", False), ("fec0::1", False), ("::7f00:1", False),
        ("::ffff:0:a00:1", False), ("64:ff9b:1::a00:1", False), ("64:ff9b::808:808", True),
    ],
)  # fmt: skip
def test_which_addresses_are_public(address: str, public: bool) -> None:
    assert is_public(address) == public


def test_a_mail_is_sent_by_smtp(deliver: Callable[..., Any]) -> None:
    lines: list[bytes] = []

    class Smtp(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"220 here\r\n")
            in_data = False
            for line in self.rfile:
                lines.append(line)
                word = line.strip().upper()
                if in_data:
                    if word == b".":
                        in_data = False
                        self.wfile.write(b"250 kept\r\n")
                    continue
                in_data = word == b"DATA"
                yes = b"550 no\r\n" if b"gone@" in line else b"250 yes\r\n"
                self.wfile.write(b"354 go\r\n" if in_data else yes)
                if word == b"QUIT":
                    return

    with serving(socketserver.ThreadingTCPServer(("127.0.0.1", 0), Smtp)) as port:
        target = Email(
            kind="email", to=("on-call@example.org", "gone@example.org"),
            sender="gangline@example.org", host="127.0.0.1", port=port, tls="none",
        )  # fmt: skip
        found = deliver(target)
        assert isinstance(found, Delivered), lines
    assert found.answer == "SMTP, 1 of 2 addresses refused"
    data = next(at for at, line in enumerate(lines) if line.upper().startswith(b"DATA"))
    mail = message_from_bytes(b"".join(lines[data + 1 :]))
    assert mail["Subject"] == "[Gangline] job a of team nlp is failed"
    assert mail["To"] == "on-call@example.org, gone@example.org"
    assert mail["Message-ID"] == "<n1.gangline@example.org>"


def test_a_secret_that_all_users_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("x")
    path.chmod(0o644)
    target = Webhook(url="http://127.0.0.1:9/", signing_key="key", allow_private=True)
    found = Deliverer({"t": target}, Secrets(tmp_path))("n1:0", Deliver(DUE))
    assert isinstance(found, Undelivered)
    assert "0600" in found.reason


GOOD = """
rules:
  queue-wait: {above_s: 60}
  cluster-utilization: {enabled: false}
receivers:
  hook: {url: "https://hooks.example/x", teams: [nlp]}
  mail: {kind: email, to: [a@example.org], sender: b@example.org, host: smtp.example}
routes:
  - {to: mail, rules: [queue-wait]}
"""


def test_the_file_has_rules_receivers_and_routes(tmp_path: Path) -> None:
    path = tmp_path / "alerts.yaml"
    path.write_text(GOOD)
    found = read_alerts(path)
    assert found.rules.queue_wait.above_s == 60
    assert not found.rules.cluster_utilization.enabled
    assert found.core().problem("hook", "nlp") is None
    assert found.core().problem("hook", "cv") is not None


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("rules: {queue-wait: {above: 1}}", "above"),
        ("rules: {queue_waits: {}}", "queue_wait"),
        ("receivers: {x: {url: 'ftp://a/b'}}", "url"),
        ("receivers: {x: {kind: slack}}", "url_secret"),
        ("receivers: {x: {url: 'https://user:secret@host/'}}", "url"),
        ("receivers: {x: {kind: email, to: ['().@:'], sender: a@b, host: c}}", "to"),
        ("receivers: {x: {kind: email, to: [a@b], sender: '=?@[!;)', host: c}}", "sender"),
        ("routes: [{to: nowhere}]", "'nowhere'"),
        ("rules: [", "is not YAML"),
        ("- a", "alerts.yaml"),
    ],
)
def test_a_wrong_file_names_the_field(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "alerts.yaml"
    path.write_text(text)
    with pytest.raises(ConfigFileError, match=named) as error:
        read_alerts(path)
    assert "secret@" not in str(error.value)
