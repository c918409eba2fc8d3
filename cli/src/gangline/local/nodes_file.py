"""The settings of further nodes that join the platform of a data directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gangline.local.kafka_access import KAFKA_FILE
from gangline_service.private_file import write_private
from gangline_service.toml_text import toml_text

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
    files = {name.lower(): environment.get(f"GANGLINE_{name}") for name in _FILES}
    files["kafka_file"] = kafka.get(KAFKA_FILE)
    named = {name: file for name, file in files.items() if file}
    write_private(nodes_file(data_dir), toml_text({**named, "environment": given}).encode())
