"""The file with the settings of nodes that join (`GANGLINE_NODES_FILE`).

    bootstrap_servers = "kafka-0.example:9093"
    store_url = "s3://gangline"
    kafka_file = "/etc/gangline/nodes/agent.toml"
    [agent]
    heartbeat_interval_s = 5
    [environment]
    AWS_REGION = "eu-1"

It is read with each request. Files that it names are sent along: `kafka_file`, the authority
(`ssl.ca.location`) that this one names, and the PEM files of the agents' own TLS (`FILES`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gangline_schemas.api.joining import JoinedNode
from gangline_service.config_file import ConfigFileError, read_config_file
from gangline_service.kafka_file import read_kafka_file

_CA = "ssl.ca.location"
FILES = ("mlflow_ca_file", "peer_ca_file", "peer_tls_cert", "peer_tls_key")
_TABLES = ("agent", "kafka", "environment")


class NodeSettingsError(Exception):
    """The file cannot be used; the message says why and shows no value."""


def read_node_settings(path: Path, node_id: str, release: str) -> JoinedNode:
    """The answer for this node. Raises NodeSettingsError."""
    try:
        content = read_config_file(path)
    except ConfigFileError as error:
        raise NodeSettingsError(str(error)) from None
    if not isinstance(content, dict):
        raise NodeSettingsError(f"{path}: must be a table of an agent's settings")
    agent, kafka, environment = (_table(path, content, name) for name in _TABLES)
    shared = {key: value for key, value in content.items() if not isinstance(value, dict)}
    settings = {**shared, **agent}
    named = settings.pop("kafka_file", None)
    files = {name: str(settings.pop(name)) for name in FILES if name in settings}
    kafka = {**_kafka(path, named), **{key: _text(value) for key, value in kafka.items()}}
    return JoinedNode(
        node_id=node_id,
        settings=settings,
        kafka={key: value for key, value in kafka.items() if key != _CA},
        kafka_ca=_pem(path, _CA, kafka[_CA]) if _CA in kafka else None,
        files={name: _pem(path, name, place) for name, place in files.items()},
        environment={key: _text(value) for key, value in environment.items()},
        release=release,
    )


def _table(path: Path, content: dict[str, Any], name: str) -> dict[str, Any]:
    found = content.get(name, {})
    if not isinstance(found, dict):
        raise NodeSettingsError(f"{path}: {name}: must be a table")
    return found


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _kafka(path: Path, named: object) -> dict[str, str]:
    if named is None:
        return {}
    try:
        return read_kafka_file(path.parent / str(named))
    except ConfigFileError as error:
        raise NodeSettingsError(f"{path}: kafka_file: {error}") from None


def _pem(path: Path, name: str, place: str) -> str:
    try:
        return (path.parent / place).read_text("ascii")
    except (OSError, UnicodeDecodeError):
        raise NodeSettingsError(f"{path}: {name}: {place} cannot be read as PEM") from None
