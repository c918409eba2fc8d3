"""kill -9 of a real service after each record of its log, from a new snapshot to the alias.

Processes of quota, pipelines and registry on a real broker; the scheduler, agents and MLflow are
played. tests/unit/pipelines/test_killed.py has the same in memory.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from gangline_bus.kafka import KafkaBus
from gangline_bus.topics import TopicNames, create_topics
from gangline_schemas.mlflow_registry import (
    VERSIONS_PATH,
    AliasesAnswer,
    AliasesQuery,
    VersionAnswer,
)
from support.harnesses.loop_story import Story, problems

SERVICES = ("quota", "pipelines", "registry")
DEADLINE_S = 900.0
QUIET_S = 20.0


class Mlflow(BaseHTTPRequestHandler):
    """Answers as the MLflow server answers the registry: one version, and any aliases."""

    aliases: dict[str, int] = {}  # noqa: RUF012 - of the one server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.path == VERSIONS_PATH:
            answer = VersionAnswer(version=1).encode()
        else:
            for row in AliasesQuery.decode(body).aliases:
                self.aliases[row.alias] = row.version
            answer = AliasesAnswer().encode()
        self.send_response(200)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture(name="mlflow_url")
def _mlflow_url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Mlflow)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


class Services:
    """The processes, by name."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._folder, self._environment = folder, environment
        self._running = {name: self._start(name) for name in SERVICES}

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        own = {"GANGLINE_HEALTH_FILE": str(self._folder / f"{name}.json"),
               "GANGLINE_INSTANCE_ID": f"{name}-0"}  # fmt: skip
        with (self._folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", f"gangline_{name}"],
                env={**self._environment, **own}, stdout=log, stderr=log,
            )  # fmt: skip

    def kill(self, name: str) -> None:
        """Kill -9, and start it again."""
        self._running[name].kill()
        self._running[name].wait()
        self._running[name] = self._start(name)

    def close(self) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()


@pytest.mark.nightly
def test_killed_after_each_record_no_job_is_there_twice_and_the_alias_moves_once(
    kafka_bootstrap: str, tmp_path: Path, mlflow_url: str
) -> None:
    names = TopicNames(f"{uuid.uuid4().hex[:8]}.")
    bus = KafkaBus(kafka_bootstrap)
    create_topics(bus, names)
    services = Services(tmp_path, {
        **os.environ,
        "GANGLINE_BOOTSTRAP_SERVERS": kafka_bootstrap,
        "GANGLINE_TOPIC_PREFIX": names.prefix,
        "GANGLINE_STORE_URL": f"file://{tmp_path / 'store'}",
        "GANGLINE_MLFLOW_URL": mlflow_url,
        "GANGLINE_SERVICE_TOKEN": "x" * 43,
    })  # fmt: skip
    kills: Counter[str] = Counter()
    try:
        story = Story(bus, names)
        story.begin()
        deadline = time.monotonic() + DEADLINE_S
        quiet_at: float | None = None
        while quiet_at is None or time.monotonic() < quiet_at:
            assert time.monotonic() < deadline, [event.type for event in story.seen]
            for record in story.answer(0.5, most=1):
                owner = record.topic.rpartition(".")[2]
                services.kill(owner)
                kills[owner] += 1
            if story.over and quiet_at is None:
                quiet_at = time.monotonic() + QUIET_S
    finally:
        services.close()
    assert problems(story.seen) == []
    assert Mlflow.aliases == {"champion": 1}
    assert sum(kills.values()) >= len(story.seen) > 30
