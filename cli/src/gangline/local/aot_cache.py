"""Java's ahead-of-time cache for the broker: a start in 0.9 s instead of 1.9 s, at half the CPU.

It is made once per machine by one training run of the broker (about 10 s of one core), which
`make setup` does: `python -m gangline.local.aot_cache`. A start without it is only slower. Java
itself checks the cache's own checksum and that the jars are the ones of the training run, and
otherwise carries on without the cache.
"""

import hashlib
import os
import shutil
import sys
import tempfile
from pathlib import Path

from gangline.local import java
from gangline.local.artifacts import default_cache
from gangline.local.process_model import ProcessSpec
from gangline.local.processes import Supervisor

BUILD_TIMEOUT_S = 120.0
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
    from gangline.local.kafka import EmbeddedKafka

    scratch = Path(tempfile.mkdtemp(prefix="gangline-aot-"))
    try:
        kafka = EmbeddedKafka(scratch / "kafka", cache)
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
            _exercise(kafka.bootstrap)
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
    what = "\n".join([java.java_version(), *java.SMALL_JVM_FLAGS, classpath])
    return cache / f"kafka-{hashlib.sha256(what.encode()).hexdigest()[:16]}.aot"


def _exercise(bootstrap: str) -> None:
    """Load the classes of the usual requests: a topic, a transaction, a group."""
    from confluent_kafka import Consumer, Producer, TopicPartition
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    client = AdminClient({"bootstrap.servers": bootstrap})
    client.create_topics([NewTopic("warm", 1, 1)])["warm"].result(20)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": "warm",
            "compression.type": "lz4",
            "log_level": 3,  # errors: the coordinator that loads is waited for
        }
    )
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "warm", "auto.offset.reset": "earliest"}
    )
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
