"""A file of librdkafka's settings in TOML: how one principal connects to Kafka.

    "security.protocol" = "SASL_SSL"
    "sasl.mechanism" = "SCRAM-SHA-512"
    "sasl.username" = "tracker"
    "sasl.password" = "..."
    "ssl.ca.location" = "/etc/gangline/kafka-ca.pem"

Names may be written without quotes, and in tables (`[sasl]`, `username = ...`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from .config_file import ConfigFileError, read_config_file
from .private_file import write_private
from .toml_text import toml_text


def read_kafka_file(path: Path) -> dict[str, str]:
    """The settings as librdkafka takes them. Raises ConfigFileError, which shows no value."""
    try:
        content = read_config_file(path)
    except ConfigFileError as error:
        raise ConfigFileError(str(error).split("\n", 1)[0]) from None
    if not isinstance(content, dict):
        raise ConfigFileError(f"{path}: must be a table of librdkafka's settings")
    return dict(_flat(path, "", content))


def _flat(path: Path, before: str, table: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        name = f"{before}{key}"
        if isinstance(value, dict):
            yield from _flat(path, f"{name}.", value)
        elif isinstance(value, bool):
            yield name, str(value).lower()
        elif isinstance(value, str | int | float):
            yield name, str(value)
        else:
            raise ConfigFileError(f"{path}: {name}: must be a text or a number")


def write_kafka_file(path: Path, settings: Mapping[str, str]) -> None:
    """Write them, readable by the owner alone (mode 0600). Raises OSError."""
    write_private(path, toml_text(settings).encode())
