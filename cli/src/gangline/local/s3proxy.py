"""A real S3 server of one node over a local folder: S3Proxy, on the Java runtime from a wheel.

It binds 127.0.0.1 only, asks for a key pair that it makes itself, and has what the object store
rests on: conditional writes, ranged reads, multipart uploads, checksums.
"""

import json
import secrets
from dataclasses import asdict, dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import ClassVar

from gangline.local import java
from gangline.local.artifacts import Artifact, Progress, fetch_all
from gangline.local.ports import keep_port, pick_ports
from gangline.local.probe import answers_ok
from gangline.local.server import LocalServer
from gangline_service.private_file import write_private

JAR = Artifact(
    "org.gaul:s3proxy:4.1.0:jar-with-dependencies",
    "a4d025969aaf796616ed4b1e2491d87d455ce84bb28cb9db086b2e6aaa68b48d",
    54955934,
)
BUCKET = "gangline"

_PROPERTIES = """\
s3proxy.endpoint=http://127.0.0.1:{port}
s3proxy.authorization=aws-v2-or-v4
s3proxy.identity={access_key}
s3proxy.credential={secret_key}
jclouds.provider=filesystem-nio2
jclouds.filesystem.basedir={objects}
"""


class S3ProxyError(RuntimeError):
    """The local S3 server cannot be prepared; the message says why."""


@dataclass(frozen=True)
class S3Settings:
    """The settings of clients; the same over restarts of the server."""

    port: int
    access_key: str
    secret_key: str = field(repr=False)


class S3Proxy(LocalServer):
    """One S3 server over one data directory; its port, key pair and objects outlive restarts.

    The directory holds `objects/` (a folder per bucket), `s3proxy.json` and `s3proxy.properties`
    (both hold the secret key, mode 0600). A port that another process has taken since the
    last run is replaced.
    """

    name = "s3proxy"
    process_environment: ClassVar = {"LOG_LEVEL": "warn", "JETTY_LOG_LEVEL": "warn"}
    stop_grace_s = 5.0

    def __init__(self, data_dir: Path, cache_dir: Path | None = None) -> None:
        super().__init__(data_dir, cache_dir)
        self._jar: Path | None = None
        self._settings: S3Settings | None = None

    @property
    def settings(self) -> S3Settings:
        """Port and key pair; known once prepared."""
        if self._settings is None:
            raise S3ProxyError("the local S3 server is not prepared yet: call prepare() or start()")
        return self._settings

    @property
    def endpoint(self) -> str:
        """The server's URL; known once prepared."""
        return f"http://127.0.0.1:{self.settings.port}"

    @property
    def url(self) -> str:
        """The store URL of the platform's bucket, without credentials (see `environment`)."""
        return f"s3://{BUCKET}?endpoint={self.endpoint}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which a client process finds the key pair."""
        return {
            "AWS_ACCESS_KEY_ID": self.settings.access_key,
            "AWS_SECRET_ACCESS_KEY": self.settings.secret_key,
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def prepare(self, progress: Progress | None = None) -> None:
        """Fetch and verify the jar, settle port and key pair; needs no running process.

        The bucket is made as well. Raises ArtifactError, OSError or S3ProxyError.
        """
        self._jar = fetch_all([JAR], self.cache_dir, progress)[0]
        self.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        objects = self.data_dir / "objects"
        objects.joinpath(BUCKET).mkdir(parents=True, exist_ok=True, mode=0o700)
        self._settings = _kept_settings(self.data_dir / "s3proxy.json")
        text = _PROPERTIES.format(objects=_escaped(objects), **asdict(self._settings))
        write_private(self.data_dir / "s3proxy.properties", text.encode(), durable=True)

    def argv(self) -> list[str]:
        """Return the server's command line; the key pair is in the properties, not in it."""
        if self._jar is None:
            raise S3ProxyError("the local S3 server is not prepared yet: call prepare() or start()")
        return [
            str(java.java_path()),
            *java.SMALL_JVM_FLAGS,
            "-jar",
            str(self._jar),
            "--properties",
            str(self.data_dir / "s3proxy.properties"),
        ]

    def is_ready(self) -> bool:
        """Whether the server answers; without a signature it refuses, and that is an answer."""
        return answers_ok(self.endpoint, HTTPStatus.FORBIDDEN)


def _kept_settings(path: Path) -> S3Settings:
    kept = _read_settings(path)
    if kept is not None and keep_port(kept.port):
        return kept
    port = pick_ports(1)[0]
    fresh = (
        S3Settings(port, f"gangline-{secrets.token_hex(6)}", secrets.token_hex(20))
        if kept is None
        else S3Settings(port, kept.access_key, kept.secret_key)
    )
    write_private(path, json.dumps(asdict(fresh)).encode(), durable=True)
    return fresh


def _read_settings(path: Path) -> S3Settings | None:
    try:
        kept = S3Settings(**json.loads(path.read_text("utf-8")))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise S3ProxyError(f"{path} is damaged ({error}); remove it for a new key pair") from None
    if not isinstance(kept.port, int) or not kept.access_key or not kept.secret_key:
        raise S3ProxyError(f"{path} is damaged; remove it for a new key pair")
    return kept


def _escaped(path: Path) -> str:
    """The path as a value of a Java properties file, which is read as Latin-1."""
    text = str(path).replace("\\", "\\\\")
    utf16 = text.encode("utf-16-be")
    units = (utf16[i] << 8 | utf16[i + 1] for i in range(0, len(utf16), 2))
    return "".join(chr(unit) if 0x20 <= unit < 0x7F else f"\\u{unit:04x}" for unit in units)
