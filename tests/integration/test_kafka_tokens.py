"""Parts with tokens of service accounts, on a secure broker that asks the issuer for its keys.

The test plays the API server of Kubernetes: it signs tokens, and serves its public keys by HTTPS.
It also plays kubelet, which replaces the file of a token.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, Self

import pytest

from gangline.errors import CliError
from gangline.kafka.acls import apply_acls, found_acls, plan_acls, wanted_acls
from gangline.kafka.connecting import connect_admin
from gangline.kafka.principals import read_principals
from gangline.kafka.rights import read_rights
from gangline.local.certificates import Authority
from gangline.local.kafka_secure import SecureKafka
from gangline.local.kafka_storage import KafkaPorts
from gangline_bus.kafka import KafkaBus
from gangline_bus.kafka_token import TOKEN_URL
from gangline_bus.ports import BusDenied, BusUnavailable, OutRecord, TopicPartition
from gangline_bus.topics import TopicNames, create_topics
from gangline_tracker.views.security import security
from gangline_tracker.views.stream import Source, StepStream
from support.builders.service_account import AUDIENCE, ISSUER, ApiServer, account, mount
from support.waiting import wait_until

PATIENCE_S = 60.0
SESSION_S = 10
"""After so long the broker closes a connection whose client has not shown a token again."""
STEPS = "gangline.steps"
QUOTA = TopicPartition("gangline.quota", 0)
# As in docs/guides/secure-kafka.md, with the second mechanism beside passwords.
_TOKENS = """\
sasl.enabled.mechanisms=SCRAM-SHA-512,OAUTHBEARER
listener.name.client.oauthbearer.sasl.jaas.config=\
org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required \
unsecuredLoginStringClaim_sub="unused" \
ssl.truststore.type="PEM" ssl.truststore.location="{ca}";
listener.name.client.oauthbearer.sasl.server.callback.handler.class=\
org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler
listener.name.client.sasl.oauthbearer.jwks.endpoint.url={url}
listener.name.client.sasl.oauthbearer.expected.audience={audience}
listener.name.client.sasl.oauthbearer.expected.issuer={issuer}
listener.name.client.oauthbearer.connections.max.reauth.ms={session_ms}
"""


class TokenKafka(SecureKafka):
    """A secure broker that takes tokens too, and asks for the issuer's keys at `url`."""

    url = ""

    @property
    def java_properties(self) -> tuple[str, ...]:  # type: ignore[override]
        """The URL must be allowed, else Kafka does not fetch it."""
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self.url}"
        return (*SecureKafka.java_properties, allowed)

    def listeners(self, ports: KafkaPorts) -> str:
        """Those of a secure broker, with tokens."""
        before = super().listeners(ports)
        own = before.replace("sasl.enabled.mechanisms=SCRAM-SHA-512\n", "")
        assert own != before
        return own + _TOKENS.format(
            ca=self.folder / "ca.pem",
            url=self.url,
            audience=AUDIENCE,
            issuer=ISSUER,
            session_ms=SESSION_S * 1000,
        )


@dataclass
class Cluster:
    broker: TokenKafka
    issuer: ApiServer
    folder: Path
    told: list[BusDenied] = field(default_factory=list)

    def file(self, name: str) -> Path:
        return self.folder / name / "token"

    def settings(self, name: str) -> dict[str, str]:
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "OAUTHBEARER",
            TOKEN_URL: self.file(name).as_uri(),
            "ssl.ca.location": str(self.broker.folder / "ca.pem"),
        }

    def bus(self, part: str, name: str = "") -> KafkaBus:
        """A part whose token is in the file of `name`."""
        return KafkaBus(
            self.broker.bootstrap,
            client=f"gangline.{part}",
            settings=self.settings(name or part),
            on_denied=self.told.append,
        )


@contextmanager
def keys_served(issuer: ApiServer, folder: Path) -> Iterator[str]:
    """The URL of the issuer's public keys, behind a certificate of the broker's authority."""

    class Keys(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/jwk-set+json")
            self.end_headers()
            self.wfile.write(issuer.jwks.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Keys)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(Authority(folder).keep("issuer"))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_address[1]}/openid/v1/jwks"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder, issuer = tmp_path_factory.mktemp("tokens"), ApiServer()
    broker = TokenKafka(folder / "kafka")
    with keys_served(issuer, broker.folder) as url:
        broker.url = url
        with broker:
            admin, rights = connect_admin(broker.settings), read_rights()
            pattern = account("{part}")
            named = read_principals([pattern, f"mlflow={account('gateway')}"], rights)
            wanted = wanted_acls(rights, principals=named)
            apply_acls(admin, plan_acls(wanted, found_acls(admin)), prune=False)
            create_topics(KafkaBus(broker.bootstrap, settings=broker.settings), TopicNames())
            assert not plan_acls(wanted, found_acls(admin)).changes
            yield Cluster(broker, issuer, folder)


@pytest.fixture(autouse=True)
def nothing_told(cluster: Cluster) -> None:
    cluster.told.clear()


def test_an_account_may_do_what_the_table_says_and_nothing_else(cluster: Cluster) -> None:
    mount(cluster.file("agent"), cluster.issuer.token("agent"))
    bus = cluster.bus("agent")
    failed: list[Any] = []
    writer = bus.writer(prompt=True)
    for topic in (STEPS, "gangline.quota"):
        writer.send(OutRecord(topic, b"k", b"v"), failed.append)
    assert writer.flush(PATIENCE_S) == 0
    (denied,) = [error for error in failed if error is not None]
    right = "Write on the topic gangline.quota"
    assert f"the principal {account('agent')} lacks {right}" in str(denied)
    place = TopicPartition("gangline.scheduling", 0)
    assert bus.committed("gangline.agent.probe", [place]) == {place: None}
    with pytest.raises(BusDenied, match="transactional id"):
        bus.transactional_writer("gangline.quota.0")
    bus.close()


def test_processes_of_one_pod_share_its_account(cluster: Cluster) -> None:
    mount(cluster.file("gateway"), cluster.issuer.token("gateway"))
    writer = cluster.bus("mlflow", "gateway").writer(prompt=True)
    failed: list[Any] = []
    for topic in ("gangline.trials", "gangline.audit"):
        writer.send(OutRecord(topic, b"k", b"v"), failed.append)
    assert writer.flush(PATIENCE_S) == 0
    assert failed == [None, None]
    writer.close()


REFUSED = {
    "of another audience": lambda issuer: issuer.token("agent", aud=["vault"]),
    "of another issuer": lambda issuer: issuer.token("agent", iss="https://elsewhere.example"),
    "signed by another": lambda _: ApiServer().token("agent"),
    "changed": lambda issuer: changed(issuer.token("agent"), issuer.token("quota")),
    "before its time": lambda issuer: issuer.token("agent", nbf=int(time.time()) + 3000),
}


def changed(token: str, other: str) -> str:
    """The claims of another token below the signature of this one."""
    head, _, signature = token.split(".")
    return f"{head}.{other.split('.')[1]}.{signature}"


@pytest.mark.parametrize("kind", REFUSED)
def test_a_token_that_is_not_good_is_refused_and_named(cluster: Cluster, kind: str) -> None:
    mount(cluster.file("bad"), REFUSED[kind](cluster.issuer))
    with pytest.raises(
        BusDenied, match="Kafka refuses the token of the principal system:"
    ) as error:
        cluster.bus("agent", "bad").partitions(STEPS)
    said = str(error.value)
    for text in (str(cluster.file("bad")), "audience", "issuer", "valid until", "its log has"):
        assert text in said
    assert not any(part in said for part in cluster.file("bad").read_text().split("."))


@pytest.mark.nightly
def test_an_expired_token_is_named_and_a_new_one_taken(cluster: Cluster) -> None:
    file = cluster.file("late")
    mount(file, cluster.issuer.token("agent", lifetime_s=-1))
    bus = cluster.bus("agent", "late")
    with pytest.raises(BusUnavailable, match="has expired"):
        bus.partitions(STEPS)
    with pytest.raises(CliError, match="has expired"):
        connect_admin({"bootstrap.servers": cluster.broker.bootstrap, **cluster.settings("late")})
    mount(file, cluster.issuer.token("agent"))
    assert bus.partitions(STEPS) > 0
    bus.close()


class Kubelet(threading.Thread):
    """Replaces the tokens of parts each second; while `away` is set, there are no files."""

    def __init__(self, cluster: Cluster, parts: tuple[str, ...], lifetime_s: float) -> None:
        super().__init__(daemon=True)
        self.rounds = 0
        self.away, self._ending = threading.Event(), threading.Event()
        self._cluster, self._parts, self._lifetime_s = cluster, parts, lifetime_s

    def run(self) -> None:
        while not self._ending.is_set():
            for part in self._parts:
                file = self._cluster.file(part)
                if self.away.is_set():
                    file.unlink(missing_ok=True)
                else:
                    mount(file, self._cluster.issuer.token(part, lifetime_s=self._lifetime_s))
            self.rounds += 1
            self._ending.wait(1.0)

    def __enter__(self) -> Self:
        self.start()
        wait_until("a round", lambda: self.rounds > 0)
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self.join()


def ends(bus: KafkaBus) -> dict[TopicPartition, int]:
    """The ends of the topic; a connection may be ended while they are asked for."""
    found: dict[TopicPartition, int] = {}

    def ask() -> bool:
        try:
            places = [TopicPartition(STEPS, p) for p in range(bus.partitions(STEPS))]
            found.update(bus.end_offsets(places))
        except BusUnavailable:
            return False
        return True

    wait_until("an answer", ask)
    return found


@pytest.mark.nightly
def test_tokens_rotate_under_open_clients_without_a_lost_record(cluster: Cluster) -> None:
    """Tokens live for a few seconds, and the broker asks for one again as often.

    In the middle there is no file for longer than a token lives.
    """
    lifetime_s = 12
    failed: list[Any] = []
    found: Counter[bytes] = Counter()
    sent = 0
    with Kubelet(cluster, ("agent", "tracker"), lifetime_s) as kubelet:
        reading = cluster.bus("tracker")
        writer, reader = cluster.bus("agent").writer(prompt=True), reading.reader("probe")
        reader.assign(ends(reading))

        def go_on(until: Callable[[], bool]) -> None:
            nonlocal sent
            deadline = time.monotonic() + 2 * PATIENCE_S
            while not until():
                assert time.monotonic() < deadline, (len(found), sent, cluster.told)
                value = b"rotation-%d" % sent
                writer.send(OutRecord(STEPS, value, value), lambda e: e and failed.append(e))
                sent += 1
                found.update(record.value for record in reader.poll(5000, 0.02))

        def rounds(count: int) -> Callable[[], bool]:
            end = kubelet.rounds + count
            return lambda: kubelet.rounds >= end

        go_on(rounds(2 * lifetime_s))
        kubelet.away.set()
        go_on(rounds(lifetime_s + 3))
        kubelet.away.clear()
        back = b"rotation-%d" % sent
        go_on(lambda: found[back] > 0)
        assert writer.flush(PATIENCE_S) == 0
        deadline = time.monotonic() + PATIENCE_S
        while len(found) < sent and time.monotonic() < deadline:
            found.update(record.value for record in reader.poll(5000, 0.2))
        reader.close()
        writer.close()
        reading.close()
    assert (failed, cluster.told) == ([], [])
    assert (len(found), set(found.values())) == (sent, {1})


@pytest.mark.nightly
def test_transactions_go_on_while_the_broker_asks_for_tokens_again(cluster: Cluster) -> None:
    """A decider ends when it loses its connection: it must not lose it."""
    file, began, commits = cluster.file("quota"), time.monotonic(), 0
    mount(file, cluster.issuer.token("quota", lifetime_s=1.5 * SESSION_S))
    bus = cluster.bus("quota")
    before = bus.end_offsets([QUOTA])[QUOTA]
    writer = bus.transactional_writer("gangline.quota.0")
    while time.monotonic() - began < 2.2 * SESSION_S:
        mount(file, cluster.issuer.token("quota", lifetime_s=1.5 * SESSION_S))
        writer.check_connection()
        writer.commit([OutRecord("gangline.quota", b"k", b"%d" % commits)], {}, "gangline.quota.0")
        commits += 1
        time.sleep(0.2)
    reader = bus.reader("probe")
    reader.assign({QUOTA: before})
    found: list[bytes] = []

    def read_all() -> bool:
        found.extend(record.value for record in reader.poll(1000, 0.1))
        return len(found) >= commits

    wait_until("all is read", read_all)
    assert found == [b"%d" % number for number in range(commits)]
    assert cluster.told == []
    reader.close()
    writer.close()
    bus.close()


@pytest.mark.nightly
def test_the_live_view_s_client_shows_tokens_too(cluster: Cluster) -> None:
    """It does not show a new token while it is connected, so the broker ends its connections."""
    mount(cluster.file("live-view"), cluster.issuer.token("live-view"))
    mount(cluster.file("agent"), cluster.issuer.token("agent"))
    writer = cluster.bus("agent").writer(prompt=True)
    how = security(cluster.settings("live-view"))
    seen: set[bytes] = set()

    async def follow() -> None:
        source = Source(cluster.broker.bootstrap, STEPS, "gangline-live", None, how)
        stream = StepStream(
            source, lambda record: seen.add(record.value), lambda at: ([], at), lambda: 0
        )
        await stream.start()
        began, number = time.monotonic(), 0
        last = b""
        while time.monotonic() - began < 2.2 * SESSION_S or last not in seen:
            assert time.monotonic() - began < PATIENCE_S
            assert not stream.crashed()
            last = b"live-%d" % number
            writer.send(OutRecord(STEPS, last, last))
            number += 1
            await asyncio.sleep(0.5)
        assert {b"live-%d" % each for each in range(number)} <= seen
        await stream.stop()

    asyncio.run(follow())
    writer.close()
    assert cluster.told == []
