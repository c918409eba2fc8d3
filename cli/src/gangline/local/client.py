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
    ca: str = ""
    """The file of the authority that signed the gateway's certificate; "": the system's."""

    @property
    def authority(self) -> Path | None:
        """The file of the authority of the gateway's certificate; None: the system's."""
        return Path(self.ca) if self.ca else None

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


@dataclass(frozen=True)
class Login:
    """A sign-in by `gangline login`; kept in `<data_dir>/login.json`, mode 0600."""

    url: str
    token: str = field(repr=False)
    user: str = ""
    ca: str = ""

    @property
    def authority(self) -> Path | None:
        """The file of the authority of the gateway's certificate; None: the system's."""
        return Path(self.ca) if self.ca else None

    def write(self, data_dir: Path) -> None:
        """Keep it for `read_login`."""
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(data_dir / "login.json", json.dumps(self.__dict__).encode())


def read_login(data_dir: Path) -> Login | None:
    """The sign-in that is kept in a directory, if any. Raises CliError."""
    path = data_dir / "login.json"
    try:
        return Login(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError):
        raise CliError(f"{path} cannot be read", "sign in again: gangline login") from None


def forget_login(data_dir: Path) -> None:
    """Remove the sign-in of a directory."""
    (data_dir / "login.json").unlink(missing_ok=True)


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
