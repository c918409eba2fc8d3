"""The settings of further nodes that join the platform of a data directory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from gangline.local.kafka_access import KAFKA_FILE
from gangline_service.private_file import write_private

_OF_AGENTS = tuple(
    f"GANGLINE_{name}"
    for name in (
        "BOOTSTRAP_SERVERS", "TOPIC_PREFIX", "STORE_URL", "LINK_UPLOADS", "MLFLOW_TRACKING_URI",
        "HEARTBEAT_TIMEOUT_S", "HEARTBEAT_INTERVAL_S", "NODE_CHECK", "ISOLATION",
        "SYSTEM_METRICS_S",
    )
)  # fmt: skip
_FILES = ("MLFLOW_CA_FILE", "PEER_CA_FILE", "PEER_TLS_CERT", "PEER_TLS_KEY")
"""Settings whose files the gateway sends along."""
_OF_THE_STORE = "AWS_"


def nodes_file(data_dir: Path) -> Path:
    """Where it is; the gateway reads it (`GANGLINE_NODES_FILE`)."""
    return data_dir / "nodes.toml"


def write_nodes_file(
    data_dir: Path, environment: Mapping[str, str], kafka: Mapping[str, str]
) -> None:
    """Write it for the platform's `environment`; `kafka`: the variables of agents for Kafka."""
    given = {
        name: value
        for name, value in environment.items()
        if name in _OF_AGENTS or name.startswith(_OF_THE_STORE)
    }
    lines = [f"kafka_file = {_quoted(kafka[KAFKA_FILE])}\n"] if KAFKA_FILE in kafka else []
    lines += [
        f"{name.lower()} = {_quoted(file)}\n"
        for name in _FILES
        if (file := environment.get(f"GANGLINE_{name}"))
    ]
    lines.append("[environment]\n")
    lines += [f"{name} = {_quoted(value)}\n" for name, value in given.items()]
    write_private(nodes_file(data_dir), "".join(lines).encode())


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
