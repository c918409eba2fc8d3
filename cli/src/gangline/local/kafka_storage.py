"""One Kafka node's files on disk before it starts: ports, settings, a formatted log folder."""

import base64
import json
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Callable
from dataclasses import asdict, astuple, dataclass
from pathlib import Path

from gangline.local import java
from gangline.local.ports import keep_port, pick_ports
from gangline_service.private_file import write_private

NODE_ID = 1
FORMAT_TIMEOUT_S = 60
# A formatted folder depends on Kafka's version alone; the cache keeps one per version.
KAFKA_VERSION = "4.0.2"

# One node, so every replication factor is 1; few partitions, for they cost memory and start time.
_SETTINGS = """\
process.roles=broker,controller
node.id={node_id}
controller.quorum.voters={node_id}@127.0.0.1:{controller_port}
controller.listener.names=CONTROLLER
log.dirs={log_dir}
auto.create.topics.enable=false
default.replication.factor=1
min.insync.replicas=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1
# Groups begin at once: no other member is about to join.
group.initial.rebalance.delay.ms=0
# A standby takes over when the leader's session is over: sessions may be shorter than 6 s.
group.min.session.timeout.ms=1000
# broker.session.timeout.ms is Kafka's 9 s, though a broker waits that long for its own old session
# after kill -9. With 1.5 or 3 s a busy machine had it fenced, and all services ended at once.
# The bus asks for long transactions and wants those of the dead aborted soon.
transaction.max.timeout.ms=900000
transaction.abort.timed.out.transaction.cleanup.interval.ms=1000
log.cleaner.dedupe.buffer.size=8388608
# The controller writes a record to its own log when idle; twice a second is for many nodes.
metadata.max.idle.interval.ms=5000
num.network.threads=2
num.io.threads=4
"""
_PLAIN = """\
listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{broker}
inter.broker.listener.name=PLAINTEXT
"""


class KafkaError(RuntimeError):
    """The embedded Kafka cannot be prepared; the message says why."""


@dataclass(frozen=True)
class KafkaPorts:
    """The ports of the node, the same over its restarts. `admin`: of a secure one alone."""

    broker: int
    controller: int
    admin: int


def plain_listeners(ports: KafkaPorts) -> str:
    """The settings of listeners that let everybody in."""
    return _PLAIN.format(broker=ports.broker, controller=ports.controller)


def prepare_storage(
    data_dir: Path,
    cache: Path,
    classpath: str,
    listeners: Callable[[KafkaPorts], str] = plain_listeners,
) -> KafkaPorts:
    """Make `data_dir` ready for a start and return its ports; what is there already stays.

    `listeners` gives the settings of the listeners and of their security. Writes `ports.json`,
    `server.properties` and a formatted `topics/`. A port that another process has taken since
    the last run is replaced.
    """
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    ports = _free_ports(data_dir)
    log_dir = data_dir / "topics"
    text = _SETTINGS.format(
        node_id=NODE_ID,
        controller_port=ports.controller,
        log_dir=log_dir,
    )
    write_private(data_dir / "server.properties", (text + listeners(ports)).encode())
    if not (log_dir / "meta.properties").exists():
        _format(log_dir, _bootstrap_checkpoint(cache, classpath))
    return ports


def kept_ports(data_dir: Path) -> KafkaPorts:
    """The ports that a prepared node has. Raises OSError, ValueError, TypeError."""
    return KafkaPorts(**json.loads((data_dir / "ports.json").read_text("utf-8")))


def _free_ports(data_dir: Path) -> KafkaPorts:
    try:
        ports = kept_ports(data_dir)
        if all(keep_port(port) for port in astuple(ports)):
            return ports
    except (OSError, ValueError, TypeError):
        pass  # the first start, or a torn file
    ports = KafkaPorts(*pick_ports(3))
    write_private(data_dir / "ports.json", json.dumps(asdict(ports)).encode())
    return ports


def _format(log_dir: Path, checkpoint: bytes) -> None:
    """Write what StorageTool's format writes, without a start of Java.

    meta.properties comes last: with it the folder counts as formatted.
    """
    log_dir.mkdir(parents=True, exist_ok=True)
    write_private(log_dir / "bootstrap.checkpoint", checkpoint)
    properties = {
        "version": "1",
        "cluster.id": _kafka_id(),
        "node.id": str(NODE_ID),
        "directory.id": _kafka_id(),
    }
    lines = [f"{key}={value}\n" for key, value in properties.items()]
    write_private(log_dir / "meta.properties", "".join(lines).encode())


def _bootstrap_checkpoint(cache: Path, classpath: str) -> bytes:
    """Return the first metadata records (feature levels) of this Kafka version.

    Kafka's own StorageTool makes them once per cache; they hold nothing of one cluster.
    """
    kept = cache / f"kafka-{KAFKA_VERSION}-bootstrap.checkpoint"
    if kept.exists():
        return kept.read_bytes()
    scratch = Path(tempfile.mkdtemp(prefix="gangline-format-"))
    try:
        ports = KafkaPorts(broker=1, controller=2, admin=3)
        settings = plain_listeners(ports) + _SETTINGS.format(
            node_id=NODE_ID, controller_port=ports.controller, log_dir=scratch / "topics"
        )
        settings_path = str(scratch / "server.properties")
        Path(settings_path).write_text(settings, "utf-8")
        java_argv = [str(java.java_path()), *java.SMALL_JVM_FLAGS, "-cp", classpath]
        tool_argv = ["kafka.tools.StorageTool", "format", "-t", _kafka_id(), "-c", settings_path]
        done = subprocess.run(
            [*java_argv, *tool_argv],
            capture_output=True,
            timeout=FORMAT_TIMEOUT_S,
            check=False,
        )
        made = scratch / "topics" / "bootstrap.checkpoint"
        if done.returncode != 0 or not made.exists():
            output = (done.stdout + done.stderr).decode("utf-8", errors="replace")
            raise KafkaError(f"Kafka's StorageTool failed:\n{output[-2000:]}")
        cache.mkdir(parents=True, exist_ok=True)
        write_private(kept, made.read_bytes())
        return kept.read_bytes()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _kafka_id() -> str:
    """Return a random id in Kafka's form: 22 characters of URL-safe base64, no leading '-'."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode("ascii").rstrip("=")
        if not text.startswith("-"):
            return text
