"""The embedded broker for real: data and ports over kill -9, leftovers, and clear failures."""

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from gangline.local import aot_cache
from gangline.local.artifacts import default_cache, fetch_all, kafka_artifacts
from gangline.local.kafka import EmbeddedKafka
from gangline.local.process_model import SupervisorError
from support.harnesses.node import alive
from support.waiting import wait_until

DEADLINE_S = 120.0
# A program that starts a broker in its directory and stays until it is killed.
OWNER = """
import sys, threading
from pathlib import Path
from gangline.local.kafka import EmbeddedKafka

kafka = EmbeddedKafka(Path(sys.argv[1]))
kafka.start()
print(kafka.pid, flush=True)
threading.Event().wait(600)
"""


def create_topic(kafka: EmbeddedKafka) -> str:
    topic = f"t-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(DEADLINE_S)
    return topic


def produce(kafka: EmbeddedKafka, topic: str, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "acks": "all"})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(DEADLINE_S) == 0


def consume(kafka: EmbeddedKafka, topic: str, count: int) -> list[bytes]:
    """Read by a group of its own, as services do."""
    settings = {"bootstrap.servers": kafka.bootstrap, "auto.offset.reset": "earliest"}
    consumer = Consumer(settings | {"group.id": uuid.uuid4().hex, "group.protocol": "consumer"})
    consumer.subscribe([topic])
    values: list[bytes] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(values) < count and time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is not None and not message.error():
            values.append(message.value() or b"")
    consumer.close()
    return values


def test_data_and_ports_outlive_kill_9(tmp_path: Path) -> None:
    with EmbeddedKafka(tmp_path) as kafka:
        before, pid = kafka.bootstrap, kafka.pid
        assert pid is not None
        topic = create_topic(kafka)
        produce(kafka, topic, [b"one", b"two"])
        os.kill(pid, signal.SIGKILL)
        wait_until("the death is seen", lambda: kafka.pid is None)
        kafka.start()
        assert kafka.bootstrap == before
        assert kafka.pid not in (None, pid)
        produce(kafka, topic, [b"three"])
        assert consume(kafka, topic, 3) == [b"one", b"two", b"three"]
    # A stop in order keeps them too, for another object over the same directory.
    with EmbeddedKafka(tmp_path) as again:
        assert again.bootstrap == before
        assert consume(again, topic, 3) == [b"one", b"two", b"three"]


def test_kill_9_of_the_owner_ends_the_broker_and_the_next_recovers(tmp_path: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    try:
        pid = int(owner.stdout.readline())
        with pytest.raises(SupervisorError, match=f"in use by a running platform .pid {owner.pid}"):
            EmbeddedKafka(tmp_path).start()
        assert alive(pid)
    finally:
        owner.kill()
        owner.communicate()
    with EmbeddedKafka(tmp_path) as kafka:
        assert not alive(pid)
        topic = create_topic(kafka)
        produce(kafka, topic, [b"one"])
        assert consume(kafka, topic, 1) == [b"one"]


def test_a_broker_that_cannot_start_says_why(tmp_path: Path) -> None:
    with EmbeddedKafka(tmp_path):
        pass
    (tmp_path / "topics" / "meta.properties").write_text("version=1\nnode.id=7\n")
    kafka = EmbeddedKafka(tmp_path)
    with pytest.raises(
        SupervisorError, match=r"(?s)process kafka did not come up.*cluster.id was not found"
    ):
        kafka.start()
    assert kafka.pid is None


def test_it_listens_on_loopback_only_and_creates_no_topic_by_accident(
    kafka: EmbeddedKafka,
) -> None:
    listening = [
        line.split()[1]
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/{kafka.pid}/net/{name}").read_text().splitlines()[1:]
        if line.split()[3] == "0A"
    ]
    port = f"{int(kafka.bootstrap.split(':')[1]):04X}"
    addresses = [address for address in listening if address.endswith(f":{port}")]
    loopback = ("0100007F:", "0000000000000000FFFF00000100007F:")
    assert len(addresses) == 1
    assert addresses[0].startswith(loopback)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.list_topics("never-made", timeout=DEADLINE_S)
    assert "never-made" not in admin.list_topics(timeout=DEADLINE_S).topics


def test_a_transaction_and_the_new_group_protocol_work(kafka: EmbeddedKafka) -> None:
    topic = create_topic(kafka)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": topic})
    producer.init_transactions(DEADLINE_S)
    endings = [(b"kept", producer.commit_transaction), (b"lost", producer.abort_transaction)]
    for value, ends in endings:
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.flush(DEADLINE_S)
        ends(DEADLINE_S)
    produce(kafka, topic, [b"after"])
    assert consume(kafka, topic, 2) == [b"kept", b"after"]


@pytest.mark.nightly  # `make setup` builds it, and each broker starts with it
@pytest.mark.usefixtures("kafka")  # the jars are there
def test_javas_cache_is_built_used_and_when_broken_only_missed(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "jars").symlink_to(default_cache() / "jars")
    made = aot_cache.build(cache)
    kafka = EmbeddedKafka(tmp_path / "kafka", cache)
    kafka.prepare()
    assert f"-XX:AOTCache={made}" in kafka.spec().argv
    with kafka:
        assert "[error]" not in (kafka.data_dir / "logs" / "kafka.log").read_text()
    with made.open("r+b") as file:
        file.seek(made.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))
    with kafka:
        assert kafka.is_ready()
        assert "[error][aot]" in (kafka.data_dir / "logs" / "kafka.log").read_text()


def test_one_artifact_comes_from_the_public_repository(tmp_path: Path) -> None:
    smallest = min(kafka_artifacts(), key=lambda artifact: artifact.size_bytes)
    [path] = fetch_all([smallest], tmp_path)
    assert path.stat().st_size == smallest.size_bytes
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_the_session_fixture_is_one_running_broker(
    kafka: EmbeddedKafka, kafka_bootstrap: str
) -> None:
    assert kafka.bootstrap == kafka_bootstrap
    assert kafka.is_ready()
