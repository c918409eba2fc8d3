"""A real ZooKeeper for tests, from jars of the public Maven repository."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from gangline.local import java
from gangline.local.artifacts import Artifact, Progress, fetch_all, kafka_artifacts
from gangline.local.ports import pick_ports
from gangline.local.server import LocalServer

JARS = (
    Artifact(
        "org.apache.zookeeper:zookeeper:3.9.5",
        "936d025db1a85f085edea25048c3f5b3de5fc29329c371a10925e3b78b0b38a0",
        1367207,
    ),
    Artifact(
        "org.apache.zookeeper:zookeeper-jute:3.9.5",
        "abcbc7f9d6c493daa118da6fa3061a201e2c521217526e8535adfb56b629e52a",
        260263,
    ),
    Artifact(
        "io.dropwizard.metrics:metrics-core:4.1.12.1",
        "cec34936faa625039f4e46123eccaa10a9eb9d9a40c6075830cd81330e259cf9",
        105355,
    ),
)
SHARED = ("org.slf4j:", "org.xerial.snappy:")
"""Jars that the broker has, too."""


class EmbeddedZooKeeper(LocalServer):
    """One server over one data directory, without users, on 127.0.0.1."""

    name = "zookeeper"
    stop_grace_s = 10.0

    def __init__(self, data_dir: Path, cache_dir: Path | None = None) -> None:
        super().__init__(data_dir, cache_dir)
        (self.port,) = pick_ports(1)

    def prepare(self, progress: Progress | None = None) -> None:
        """Fetch the jars and write the settings."""
        shared = [jar for jar in kafka_artifacts() if jar.coordinate.startswith(SHARED)]
        jars = fetch_all([*JARS, *shared], self.cache_dir, progress)
        self._classpath = os.pathsep.join(str(jar) for jar in jars)
        (self.data_dir / "zoo.cfg").write_text(
            f"dataDir={self.data_dir}/data\nclientPort={self.port}\nclientPortAddress=127.0.0.1\n"
            "admin.enableServer=false\ntickTime=500\n4lw.commands.whitelist=ruok\n"
        )

    def argv(self) -> list[str]:
        """Its command line."""
        program = "org.apache.zookeeper.server.ZooKeeperServerMain"
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        settings = str(self.data_dir / "zoo.cfg")
        flags = [*java.SMALL_JVM_FLAGS, quiet, "-cp", self._classpath]
        return [str(java.java_path()), *flags, program, settings]

    def is_ready(self) -> bool:
        """Whether it answers."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"ruok")
                return connection.recv(4) == b"imok"
        except OSError:
            return False
