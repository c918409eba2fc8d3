"""Every right of deploy/kafka/acls.toml on a secure broker: those that are there, and no others."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from gangline.kafka.acls import Acl, apply_acls, found_acls, plan_acls, wanted_acls
from gangline.kafka.connecting import connect_admin, read_settings
from gangline.kafka.rights import FAMILY, Rights, read_rights
from gangline.kafka.users import create_users, plan_users, rotate_users
from gangline.local.kafka_folders import admin_file
from gangline.local.kafka_renewal import renew_broker, shown
from gangline.local.kafka_secure import SecureKafka
from gangline_bus.kafka import KafkaBus
from gangline_bus.ports import BusDenied, OutRecord
from gangline_bus.ports import TopicPartition as Place
from gangline_bus.topics import TopicNames, create_topics
from gangline_service.lifecycle import EXIT_DENIED
from support.harnesses.service_process import service_process
from support.waiting import wait_until

STRANGER = "stranger"
"""A user without any right."""
PATIENCE_S = 60.0
DENIED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
TOPICS = sorted(topic.name for topic in TopicNames().settings())
Answers = dict[str, bool]
"""What was tried, and whether it was allowed."""


@dataclass(frozen=True)
class Cluster:
    broker: SecureKafka

    def settings(self, user: str) -> dict[str, Any]:
        own = read_settings(self.broker.users.path(user))
        return {"bootstrap.servers": self.broker.bootstrap, "log_level": 0, **own}

    def bus(self, user: str, **more: Any) -> KafkaBus:
        settings = {**read_settings(self.broker.users.path(user)), **more.pop("settings", {})}
        return KafkaBus(self.broker.bootstrap, client=f"gangline.{user}", settings=settings, **more)

    def denied(self) -> list[str]:
        """What the authorizer wrote."""
        text = (self.broker.data_dir / "logs" / "kafka.log").read_text(errors="replace")
        return [line for line in text.splitlines() if "is Denied" in line or " Denied " in line]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with started(tmp_path_factory.mktemp("secure")) as cluster:
        yield cluster


@contextmanager
def started(folder: Path) -> Iterator[Cluster]:
    """A broker with all users, rights and topics."""
    with SecureKafka(folder) as broker:
        admin, rights, files = connect_admin(broker.settings), read_rights(), broker.users
        users = [*rights, STRANGER]
        create_users(admin, plan_users(admin, users, files).create, files)
        apply_acls(admin, plan_acls(wanted_acls(rights), found_acls(admin)), prune=False)
        bus = KafkaBus(broker.bootstrap, settings=broker.settings)
        create_topics(bus, TopicNames())
        assert not plan_users(admin, users, files).changes
        assert not plan_acls(wanted_acls(rights), found_acls(admin)).changes
        yield Cluster(broker)


def written(settings: dict[str, Any]) -> Answers:
    found: Answers = {}
    producer = Producer({**settings, "linger.ms": 0})
    for topic in TOPICS:

        def told(error: KafkaError | None, _: object, topic: str = topic) -> None:
            assert error is None or error.code() in DENIED, error
            found[f"write {topic}"] = error is None

        producer.produce(topic, b"probe", b"key", on_delivery=told)
    producer.flush(PATIENCE_S)
    return found


def read(settings: dict[str, Any], group: str) -> Answers:
    found: Answers = {}
    consumer = Consumer({**settings, "group.id": group, "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, 0, 0) for topic in TOPICS])
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < len(TOPICS) and time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is None or message.topic() is None:
            continue
        error = message.error()
        refused = error is not None and error.code() != KafkaError._PARTITION_EOF
        assert not refused or error.code() in DENIED, error
        found[f"read {message.topic()}"] = not refused
    consumer.close()
    return found


def fenced(settings: dict[str, Any], transactional_id: str) -> bool:
    producer = Producer({**settings, "transactional.id": f"{transactional_id}0"})
    try:
        producer.init_transactions(PATIENCE_S)
    except KafkaException as error:
        if error.args[0].code() in DENIED:
            return False
        raise
    return True


def joined(settings: dict[str, Any], group: str) -> bool:
    consumer = Consumer({**settings, "group.id": f"{group}.probe", "enable.auto.commit": False})
    deadline = time.monotonic() + PATIENCE_S
    try:
        while time.monotonic() < deadline:
            try:
                consumer.committed([TopicPartition(f"{FAMILY}workers", 0)], timeout=1.0)
            except KafkaException:
                message = consumer.poll(0)
                if message is not None and message.error() is not None:
                    assert message.error().code() in DENIED, message.error()
                    return False
            else:
                return True
        raise AssertionError(f"no answer about {group}")
    finally:
        consumer.close()


def tried(cluster: Cluster, user: str, rights: dict[str, Rights]) -> Answers:
    """All that a user could try."""
    settings = cluster.settings(user)
    own = rights.get(user)
    found = written(settings)
    if own is not None:  # to a stranger Kafka does not even say which topics there are
        found |= read(settings, own.groups[0])
    owners = {r.transactional_id for r in rights.values() if r.transactional_id}
    found |= {f"fence {name}": fenced(settings, name) for name in sorted(owners)}
    groups = [group for right in rights.values() for group in right.groups]
    return found | {f"group {group}": joined(settings, group) for group in groups}


def allowed(own: Rights | None, answers: Answers) -> Answers:
    """The same questions, answered by the file."""
    mine: set[str] = set()
    if own is not None:
        mine |= {f"read {topic}" for topic in own.read} | {f"write {topic}" for topic in own.write}
        mine |= {f"fence {own.transactional_id}"} | {f"group {group}" for group in own.groups}
    return {question: question in mine for question in answers}


@pytest.mark.nightly
def test_every_right_is_as_the_file_says(cluster: Cluster) -> None:
    rights = read_rights()
    users = [*rights, STRANGER]
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda user: tried(cluster, user, rights), users))
    for user, answers in zip(users, found, strict=True):
        assert answers == allowed(rights.get(user), answers), user
    count = sum(len(answers) for answers in found)
    owners = sum(own.transactional_id is not None for own in rights.values())
    groups = sum(len(own.groups) for own in rights.values())
    assert count == len(users) * (2 * len(TOPICS) + owners + groups) - len(TOPICS)
    print(f"{count} rights tried")
    assert cluster.denied()


def test_a_denied_call_names_principal_and_right(cluster: Cluster) -> None:
    told: list[BusDenied] = []
    bus = cluster.bus("agent", on_denied=told.append)
    assert bus.partitions("gangline.quota") == 1
    writer = bus.writer(prompt=True)
    failed: list[Any] = []
    writer.send(OutRecord("gangline.quota", b"k", b"v"), failed.append)
    assert writer.flush(PATIENCE_S) == 0
    reader = bus.reader("probe")
    reader.assign({Place("gangline.quota", 0): 0})
    calls = {
        "Read on the topic gangline.quota": lambda: [reader.poll(1, 1.0) for _ in range(60)],
        "Write on the transactional id gangline.quota.0": lambda: bus.transactional_writer(
            "gangline.quota.0"
        ),
        "Read on the group gangline.quota.0": lambda: bus.committed(
            "gangline.quota.0", [Place("gangline.workers", 0)]
        ),
    }
    for right, call in calls.items():
        with pytest.raises(BusDenied, match=f"the principal agent lacks {right}"):
            call()
    rights = ["Write on the topic gangline.quota", *calls]
    assert all(right in str(error) for right, error in zip(rights, told, strict=True))
    assert failed == told[:1]
    with pytest.raises(BusDenied, match=r"Describe on the group gangline\.quota"):
        bus.members("gangline.quota")
    assert len(told) == len(rights)  # asking about a group ends no process
    with pytest.raises(BusDenied, match="principal stranger lacks Describe on the topic"):
        cluster.bus(STRANGER).partitions("gangline.quota")


def variables(cluster: Cluster, user: str) -> dict[str, str]:
    """The environment of a service that shows Kafka this user."""
    own = {
        "GANGLINE_BOOTSTRAP_SERVERS": cluster.broker.bootstrap,
        "GANGLINE_KAFKA_FILE": str(cluster.broker.users.path(user)),
    }
    return {name: value for name, value in os.environ.items() if "GANGLINE" not in name} | own


def refusals(log: str) -> list[str]:
    """The errors of a service that say that it is denied."""
    records = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    return [record["error"] for record in records if record["event"] == "service.denied"]


def test_a_service_with_another_part_s_password_ends_and_names_a_right(cluster: Cluster) -> None:
    command = [sys.executable, "-m", "gangline_quota"]
    environment = variables(cluster, "alerts") | {"GANGLINE_HEALTH_PORT": "0"}
    ended = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert ended.returncode == EXIT_DENIED, ended.stderr[-4000:]
    (error,) = refusals(ended.stderr)
    assert re.match(r"the principal alerts lacks \w+ on the [a-z ]+ gangline\.quota", error)


def test_a_running_service_that_loses_a_right_ends_and_names_it(
    cluster: Cluster, tmp_path: Path
) -> None:
    admin, wanted = connect_admin(cluster.broker.settings), wanted_acls(read_rights())
    lost = Acl("quota", "READ", "TOPIC", "gangline.requests", "LITERAL")
    try:
        with service_process("quota", tmp_path, variables(cluster, "quota")) as pid:
            apply_acls(admin, plan_acls(wanted - {lost}, found_acls(admin)), prune=True)
            seen = os.WEXITED | os.WNOWAIT | os.WNOHANG
            end = wait_until("its end", lambda: os.waitid(os.P_PID, pid, seen))
    finally:
        apply_acls(admin, plan_acls(wanted, found_acls(admin)), prune=False)
    log = (tmp_path / "quota.log").read_text()
    assert end.si_status == EXIT_DENIED, log[-4000:]
    (error,) = refusals(log)
    assert "the principal quota lacks Read on the topic gangline.requests" in error


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"sasl.password": "wrong"}, "password of the principal quota"),
        ({"sasl.username": "nobody"}, "password of the principal nobody"),
        ({"ssl.ca.location": "/etc/ssl/certs/ca-certificates.crt"}, "certificate is not known"),
    ],
)
def test_refused_credentials_end_the_first_call(
    cluster: Cluster, settings: dict[str, str], said: str
) -> None:
    with pytest.raises(BusDenied, match=said):
        cluster.bus("quota", settings=settings).partitions("gangline.quota")


def test_open_clients_take_a_new_password_and_a_new_certificate(cluster: Cluster) -> None:
    broker = cluster.broker
    told: list[BusDenied] = []

    def password() -> str:
        return str(cluster.settings("agent")["sasl.password"])

    bus = cluster.bus("agent", password=password, on_denied=told.append)
    assert bus.partitions("gangline.steps")
    late = cluster.bus("agent", password=password, on_denied=told.append)
    before = password()
    port = int(broker.bootstrap.split(":")[1])
    authority = broker.folder / "ca.pem"
    certificate = shown(port, authority)
    rotate_users(connect_admin(read_settings(admin_file(broker.data_dir))), ["agent"], broker.users)
    renew_broker(broker.data_dir)
    assert password() != before
    assert shown(port, authority) != certificate
    # Its settings have the old password: this client is refused, and then takes the new one.
    writer = bus.writer(prompt=True)
    failed: list[Any] = []
    writer.send(OutRecord("gangline.steps", b"k", b"v"), failed.append)
    assert writer.flush(PATIENCE_S) == 0
    place = Place("gangline.workers", 0)
    assert late.committed("gangline.agent.probe", [place]) == {place: None}
    assert (failed, told) == ([None], [])


@pytest.mark.nightly
def test_no_record_is_lost_while_passwords_and_certificates_change(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """A writer and a reader that stay open; after each change the broker is killed.

    So each client has to show its new password.
    """
    with started(tmp_path_factory.mktemp("rotation")) as cluster:
        broker, ending = cluster.broker, threading.Event()
        told: list[BusDenied] = []

        def bus(user: str) -> KafkaBus:
            return cluster.bus(
                user,
                password=lambda: str(cluster.settings(user)["sasl.password"]),
                on_denied=told.append,
            )

        writer, reader = bus("agent").writer(prompt=True), bus("tracker").reader("probe")
        places = [
            Place("gangline.steps", p) for p in range(bus("tracker").partitions("gangline.steps"))
        ]
        reader.assign(dict.fromkeys(places, 0))
        failed: list[Any] = []
        sent = 0

        def write() -> None:
            nonlocal sent
            while not ending.is_set():
                value = str(sent).encode()
                writer.send(
                    OutRecord("gangline.steps", value, value),
                    lambda error: failed.append(error) if error is not None else None,
                )
                sent += 1
                ending.wait(0.002)

        thread = threading.Thread(target=write)
        thread.start()
        found: Counter[int] = Counter()

        def read_on(until: Callable[[], bool]) -> None:
            deadline = time.monotonic() + PATIENCE_S
            while not until():
                assert time.monotonic() < deadline, (len(found), sent, told)
                found.update(int(record.value) for record in reader.poll(5000, 0.2))

        for _ in range(3):
            admin = connect_admin(broker.settings)
            rotate_users(admin, list(read_rights()), broker.users)
            renew_broker(broker.data_dir)
            assert broker.pid is not None
            os.kill(broker.pid, signal.SIGKILL)
            broker.stop()
            broker.start()
            before = sent
            read_on(lambda before=before: found[before] > 0)  # type: ignore[misc]
        ending.set()
        thread.join()
        assert writer.flush(PATIENCE_S) == 0
        read_on(lambda: len(found) == sent)
        assert (failed, told, cluster.denied()) == ([], [], [])
        assert set(found.values()) == {1}
