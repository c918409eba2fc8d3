"""The folder of a node that has joined: settings, credentials, and the agent's data.

- `node.toml`: the agent's settings (`GANGLINE_CONFIG`).
- `kafka.toml`, `kafka-ca.pem`: librdkafka's settings of the agents' principal, and its authority.
- `peer_tls_key.pem` and the like: files that other settings name.
- `environment`: variables of the agent, for systemd too.
- `health.json`: where the agent answers, and its process id, while it runs.
- `data/`: work, spool and checkpoint copies.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gangline.errors import CliError
from gangline_schemas.api.joining import JoinedNode
from gangline_service.kafka_file import write_kafka_file
from gangline_service.private_file import write_private
from gangline_service.toml_text import toml_text

_CA = "ssl.ca.location"


def default_folder() -> Path:
    """Of this machine for root, else of this user."""
    if os.geteuid() == 0:
        return Path("/var/lib/gangline-node")
    return Path.home() / ".gangline-node"


@dataclass(frozen=True)
class NodeFolder:
    """The files of one node. All but `data` are readable by their owner alone."""

    path: Path

    @property
    def data(self) -> Path:
        """The agent's own folder."""
        return self.path / "data"

    @property
    def environment_file(self) -> Path:
        """Variables of the agent, as NAME="VALUE" lines."""
        return self.path / "environment"

    @property
    def joined(self) -> bool:
        """Whether the node has joined and not left."""
        return self.environment_file.exists()

    def write(self, joined: JoinedNode, own: Mapping[str, object]) -> None:
        """Keep what the gateway gave; `own` are settings of this node alone. Raises OSError."""
        self.path.mkdir(parents=True, exist_ok=True)
        self.path.chmod(0o711)  # users of teams pass to what is theirs in `data`
        settings = {**joined.settings, **own, "node_id": joined.node_id}
        if joined.kafka or joined.kafka_ca:
            settings["kafka_file"] = str(self._kafka(joined))
        for name, content in joined.files.items():
            settings[name] = str(self.path / f"{name}.pem")
            write_private(self.path / f"{name}.pem", content.encode("ascii"))
        write_private(self.path / "node.toml", toml_text({"agent": settings}).encode())
        variables = {
            **joined.environment,
            "GANGLINE_CONFIG": str(self.path / "node.toml"),
            "GANGLINE_DATA_DIR": str(self.data),
            "GANGLINE_HEALTH_FILE": str(self._health),
        }
        content = "".join(f'{name}="{_escaped(value)}"\n' for name, value in variables.items())
        write_private(self.environment_file, content.encode(), durable=True)

    def environment(self) -> dict[str, str]:
        """The variables of the agent. Raises CliError."""
        try:
            text = self.environment_file.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise CliError(
                f"{self.path} has not joined", "gangline node join --server URL --token TOKEN"
            ) from None
        return dict(_read(text))

    def pid(self) -> int | None:
        """The process of the agent; None: it does not run."""
        if not self._is_locked():
            return None
        try:
            found: int = json.loads(self._health.read_text(encoding="utf-8"))["pid"]
        except (OSError, ValueError, KeyError):
            return None
        return found

    def forget(self) -> None:
        """Delete the credentials; `data` stays."""
        for name in ("environment", "node.toml", "kafka.toml"):
            (self.path / name).unlink(missing_ok=True)
        for file in self.path.glob("*.pem"):
            file.unlink()

    @property
    def _health(self) -> Path:
        return self.path / "health.json"

    def _kafka(self, joined: JoinedNode) -> Path:
        file, settings = self.path / "kafka.toml", dict(joined.kafka)
        if joined.kafka_ca is not None:
            authority = self.path / "kafka-ca.pem"
            write_private(authority, joined.kafka_ca.encode("ascii"))
            settings[_CA] = str(authority)
        write_kafka_file(file, settings)
        return file

    def _is_locked(self) -> bool:
        """Whether an agent has taken the data folder."""
        try:
            descriptor = os.open(self.data / "agent.lock", os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False


def _escaped(value: str) -> str:
    if "\n" in value:
        raise CliError("the gateway gave a variable of several lines", "check its nodes file")
    return value.replace("\\", "\\\\").replace('"', '\\"')


def _read(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        (word,) = shlex.split(line)
        name, _, value = word.partition("=")
        yield name, value
