"""Java's ahead-of-time cache for the broker: a start in 0.9 s instead of 1.9 s, at half the CPU.

It is made once per machine by one training run of the broker (about 10 s of one core), which
`make setup` does: `python -m gangline.local.aot_cache`. A start without it is only slower. Java
itself checks the cache's own checksum and that the jars are the ones of the training run, and
otherwise carries on without the cache.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from gangline.local import java
from gangline.local.artifacts import default_cache
from gangline.local.process_model import ProcessSpec
from gangline.local.processes import Supervisor

if TYPE_CHECKING:
    from gangline.local.kafka_secure import SecureKafka

BUILD_TIMEOUT_S = 120.0
_TRAINING = "2: with TLS, users and rights"
"""Which classes a cache holds; another text makes a new cache."""
# Java warns about each class that it cannot cache, a line each; nothing to act on.
_QUIET = ("-Xlog:disable", "-Xlog:all=error:stderr")


def aot_flags(cache: Path, classpath: str) -> tuple[str, ...]:
    """Return Java's flags for the cache of this class path; empty when none was made."""
    path = cache_file(cache, classpath)
    return (f"-XX:AOTCache={path}", "-XX:+VerifySharedSpaces", *_QUIET) if path.exists() else ()


def build(cache: Path | None = None) -> Path:
    """Make the cache unless it is there, and return its file.

    Starts a broker in a scratch directory, uses it a little, and stops it. Raises SupervisorError
    or RuntimeError when that fails; two builds at a time do no harm.
    """
    from gangline.local.kafka_secure import SecureKafka

    scratch = Path(tempfile.mkdtemp(prefix="gangline-aot-"))
    try:
        # With TLS and rights: a plain broker uses a part of the same classes.
        kafka = SecureKafka(scratch / "kafka", cache)
        kafka.prepare()
        target = cache_file(kafka.cache_dir, kafka.classpath)
        if target.exists():
            return target
        made = scratch / "aot"
        training = ProcessSpec(
            name="kafka",
            argv=kafka.argv((f"-XX:AOTCacheOutput={made}", *_QUIET)),
            ready=kafka.is_ready,
            restart="never",
            # Java writes the cache while it ends.
            stop_grace_s=BUILD_TIMEOUT_S,
        )
        with Supervisor(scratch) as supervisor:
            supervisor.start([training])
            supervisor.wait_ready(60)
            _exercise(kafka)
        if not made.exists():
            raise RuntimeError(f"Java {java.java_version()} has written no AOT cache")
        fresh = target.with_name(f".{target.name}.{os.getpid()}")
        shutil.copyfile(made, fresh)
        fresh.replace(target)
        return target
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def cache_file(cache: Path, classpath: str) -> Path:
    """Return where the cache of this Java, its flags and this class path belongs."""
    what = "\n".join([java.java_version(), *java.SMALL_JVM_FLAGS, classpath, _TRAINING])
    return cache / f"kafka-{hashlib.sha256(what.encode()).hexdigest()[:16]}.aot"


def _exercise(kafka: SecureKafka) -> None:
    """Load the classes of the usual requests: users, rights, a topic, a transaction, a group."""
    from confluent_kafka import Consumer, Producer, TopicPartition
    from confluent_kafka.cimpl import NewTopic

    from gangline.kafka.acls import Acl, apply_acls, plan_acls
    from gangline.kafka.connecting import connect_admin, read_settings
    from gangline.kafka.users import create_users, plan_users

    users = kafka.users
    client = connect_admin(kafka.settings)
    client.create_topics([NewTopic("warm", 1, 1)])["warm"].result(20)
    create_users(client, plan_users(client, ["warm"], users).create, users)
    kinds = (
        ("TOPIC", "WRITE"),
        ("TOPIC", "READ"),
        ("GROUP", "READ"),
        ("TRANSACTIONAL_ID", "WRITE"),
    )
    acls = [Acl("warm", operation, kind, "warm", "PREFIXED") for kind, operation in kinds]
    apply_acls(client, plan_acls(acls, []), prune=False)
    settings = {"bootstrap.servers": kafka.bootstrap, **read_settings(users.path("warm"))}
    # Errors: the coordinator that loads is waited for.
    producer = Producer(
        {**settings, "transactional.id": "warm", "compression.type": "lz4", "log_level": 3}
    )
    consumer = Consumer({**settings, "group.id": "warm", "auto.offset.reset": "earliest"})
    producer.init_transactions(20)
    for _ in range(20):
        producer.begin_transaction()
        producer.produce("warm", b"value", b"key")
        producer.send_offsets_to_transaction(
            [TopicPartition("warm", 0, 0)], consumer.consumer_group_metadata(), 20
        )
        producer.commit_transaction(20)
    consumer.subscribe(["warm"])
    consumer.consume(20, 10)
    consumer.close()


def main() -> None:
    """Make the cache in the default place; without a traceback when that fails."""
    from confluent_kafka import KafkaException

    try:
        build(default_cache())
    except (RuntimeError, OSError, KafkaException) as error:
        sys.exit(f"Java's cache: {error}")


if __name__ == "__main__":
    main()
