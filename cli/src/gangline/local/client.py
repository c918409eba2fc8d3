"""How the command line finds the platform of a data directory; light, as every command reads it."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from gangline.errors import CliError
from gangline_service.private_file import write_private

_CLIENT, _LOGIN = "client.json", "login.json"


@dataclass(frozen=True)
class Reached:
    """A gateway that the command line knows, kept in a file of mode 0600."""

    url: str
    token: str = field(repr=False)
    ca: str = field(default="", kw_only=True)
    """The file of the authority that signed the gateway's certificate; "": the system's."""

    @property
    def authority(self) -> Path | None:
        """The file of the authority of the gateway's certificate; None: the system's."""
        return Path(self.ca) if self.ca else None

    def is_at(self, url: str) -> bool:
        """Whether this is the gateway of a URL."""
        return self.url.rstrip("/") == url.rstrip("/")


ReachedT = TypeVar("ReachedT", bound=Reached)


@dataclass(frozen=True)
class Client(Reached):
    """The platform of a data directory; kept in `<data_dir>/client.json`."""

    bootstrap_servers: str = ""
    clickhouse_url: str = ""
    kafka_file: str = ""
    """Librdkafka's settings of the administrator, where Kafka asks who one is."""

    def write(self, data_dir: Path) -> None:
        """Keep it for `read_client`."""
        _write(data_dir / _CLIENT, self)


@dataclass(frozen=True)
class Login(Reached):
    """A sign-in by `gangline login`; kept in `<data_dir>/login.json`."""

    user: str = ""

    def write(self, data_dir: Path) -> None:
        """Keep it for `read_login`."""
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write(data_dir / _LOGIN, self)


def read_client(data_dir: Path) -> Client | None:
    """How to reach the platform of a directory; None: none was ever up there. Raises CliError."""
    return _read(Client, data_dir / _CLIENT, "`gangline up` writes it again")


def read_login(data_dir: Path) -> Login | None:
    """The sign-in that is kept in a directory, if any. Raises CliError."""
    return _read(Login, data_dir / _LOGIN, "sign in again: gangline login")


def forget_login(data_dir: Path) -> None:
    """Remove the sign-in of a directory."""
    (data_dir / _LOGIN).unlink(missing_ok=True)


def no_client(data_dir: Path, otherwise: str) -> CliError:
    """No platform was ever up there; `otherwise`: another way out than to start one."""
    return CliError(
        f"no platform is known: there is no {data_dir / _CLIENT}",
        f"start one with `gangline up`, or {otherwise}",
    )


def default_data_dir() -> Path:
    """GANGLINE_DATA_DIR, or .gangline in the home directory."""
    chosen = os.environ.get("GANGLINE_DATA_DIR", "")
    return Path(chosen) if chosen else Path.home() / ".gangline"


def _write(path: Path, known: Reached) -> None:
    write_private(path, json.dumps(known.__dict__).encode())


def _read(kind: type[ReachedT], path: Path, way_out: str) -> ReachedT | None:
    try:
        return kind(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError):
        raise CliError(f"{path} cannot be read", way_out) from None
