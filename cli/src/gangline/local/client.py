"""How the command line finds the platform of a data directory; light, as every command reads it."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from gangline.errors import CliError
from gangline_service.private_file import write_private


@dataclass(frozen=True)
class Client:
    """How the command line reaches a platform; kept in `<data_dir>/client.json`, mode 0600."""

    url: str
    token: str = field(repr=False)
    bootstrap_servers: str = ""
    clickhouse_url: str = ""
    kafka_file: str = ""
    """Librdkafka's settings of the administrator, where Kafka asks who one is."""

    def write(self, data_dir: Path) -> None:
        """Keep it for `read_client`."""
        write_private(data_dir / "client.json", json.dumps(self.__dict__).encode())


def read_client(data_dir: Path) -> Client | None:
    """How to reach the platform of a directory; None: none was ever up there. Raises CliError."""
    path = data_dir / "client.json"
    try:
        return Client(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError):
        raise CliError(f"{path} cannot be read", "`gangline up` writes it again") from None


def no_client(data_dir: Path, otherwise: str) -> CliError:
    """No platform was ever up there; `otherwise`: another way out than to start one."""
    return CliError(
        f"no platform is known: there is no {data_dir / 'client.json'}",
        f"start one with `gangline up`, or {otherwise}",
    )


def default_data_dir() -> Path:
    """GANGLINE_DATA_DIR, or .gangline in the home directory."""
    chosen = os.environ.get("GANGLINE_DATA_DIR", "")
    return Path(chosen) if chosen else Path.home() / ".gangline"
