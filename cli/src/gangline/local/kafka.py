"""A real Apache Kafka broker of one node, on a Java runtime from a wheel and pinned jars.

It binds 127.0.0.1 only.
"""

import os
import socket
from pathlib import Path
from typing import ClassVar

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from gangline.local import java
from gangline.local.aot_cache import aot_flags
from gangline.local.artifacts import Progress, fetch_all, kafka_artifacts
from gangline.local.kafka_storage import KafkaPorts, plain_listeners, prepare_storage
from gangline.local.server import LocalServer

METADATA_TIMEOUT_S = 2.0


class EmbeddedKafka(LocalServer):
    """One broker. `LocalServer` describes the parts that all servers share."""

    name = "kafka"
    stop_grace_s = 20.0
    java_properties: ClassVar[tuple[str, ...]] = ()

    def __init__(self, data_dir: Path, cache_dir: Path | None = None) -> None:
        super().__init__(data_dir, cache_dir)
        self._ports: KafkaPorts | None = None
        self._classpath = ""

    @property
    def bootstrap(self) -> str:
        """HOST:PORT for clients; known once prepared."""
        if self._ports is None:
            raise RuntimeError("the embedded Kafka is not prepared yet: call prepare() or start()")
        return f"127.0.0.1:{self._ports.broker}"

    @property
    def classpath(self) -> str:
        """The jars, as Java takes them; also for Kafka's console tools. Known once prepared."""
        return self._classpath

    def prepare(self, progress: Progress | None = None) -> None:
        """Fetch and verify the jars, settle ports and settings, format; needs no running process.

        Raises ArtifactError or KafkaError.
        """
        jars = fetch_all(kafka_artifacts(), self.cache_dir, progress)
        self._classpath = os.pathsep.join(str(jar) for jar in jars)
        self._ports = prepare_storage(
            self.data_dir, self.cache_dir, self._classpath, self.listeners
        )

    def listeners(self, ports: KafkaPorts) -> str:
        """The settings of its listeners."""
        return plain_listeners(ports)

    @property
    def settings(self) -> dict[str, str]:
        """Librdkafka's settings of a client that may do everything; known once prepared."""
        return {"bootstrap.servers": self.bootstrap}

    def argv(self, flags: tuple[str, ...] | None = None) -> list[str]:
        """The broker's command line with further flags for Java, else those for its cache."""
        return [
            str(java.java_path()),
            *java.SMALL_JVM_FLAGS,
            *(aot_flags(self.cache_dir, self._classpath) if flags is None else flags),
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-Dorg.slf4j.simpleLogger.showDateTime=true",
            "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSS",
            *self.java_properties,
            "-cp",
            self._classpath,
            "kafka.Kafka",
            str(self.data_dir / "server.properties"),
        ]

    def is_ready(self) -> bool:
        """Whether the broker answers a metadata request and knows itself and a controller."""
        settings = self.settings
        host, port = settings["bootstrap.servers"].split(":")
        try:
            # Cheap while no broker listens; librdkafka would back off and complain.
            socket.create_connection((host, int(port)), timeout=0.5).close()
            client = AdminClient({**settings, "log_level": 0})
            metadata = client.list_topics(timeout=METADATA_TIMEOUT_S)
        except (OSError, KafkaException):
            return False
        return bool(metadata.brokers) and metadata.controller_id in metadata.brokers
