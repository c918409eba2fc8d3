"""Java artifacts from the public Maven repository, each pinned by its SHA-256.

The cycle: look in the cache, verify the checksum (at each start: 46 MB take well under 0.2 s),
else download into a private folder, verify, and move into place. So a torn download, a flipped
bit or two processes that fetch at once never leave a wrong file under its final name.
"""

import hashlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

ATTEMPTS = 4
FIRST_RETRY_S = 0.5
DOWNLOAD_TIMEOUT_S = 30
THREADS = 8

Progress = Callable[[str], None]


class ArtifactError(RuntimeError):
    """An artifact cannot be had, or is not the one that was pinned."""


@dataclass(frozen=True)
class Artifact:
    """A pinned artifact; `coordinate` is group:name:version or group:name:version:classifier."""

    coordinate: str
    sha256: str
    size_bytes: int = 0

    @property
    def filename(self) -> str:
        """The file's name in the cache, as in a Maven repository."""
        _, name, version, *classifier = _parts(self.coordinate)
        return "-".join([name, version, *classifier]) + ".jar"


def default_cache() -> Path:
    """The folder for what is downloaded or derived: $GANGLINE_CACHE, else ~/.cache/gangline."""
    named = os.environ.get("GANGLINE_CACHE")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "gangline"


def kafka_artifacts() -> tuple[Artifact, ...]:
    """Return the pinned jars of the embedded Apache Kafka."""
    return parse_pins(resources.files(__package__).joinpath("kafka_jars.txt").read_text("utf-8"))


def parse_pins(text: str) -> tuple[Artifact, ...]:
    """Read lines of `coordinate sha256 bytes`; `#` begins a comment line."""
    pins = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        fields = line.split()
        if len(fields) != 3 or len(fields[1]) != 64 or not fields[2].isdigit():
            raise ArtifactError(f"pin list, line {number}: expected `coordinate sha256 bytes`")
        pins.append(Artifact(fields[0], fields[1], int(fields[2])))
    return tuple(pins)


def fetch_all(
    artifacts: Sequence[Artifact], cache: Path, progress: Progress | None = None
) -> list[Path]:
    """Return the verified files of all artifacts, in their order; download what is missing.

    `progress` is called with one line of text each time a missing artifact has come. Raises
    ArtifactError when one cannot be downloaded after a bounded number of tries, or when what came
    has another checksum.
    """
    paths = [cache / "jars" / artifact.filename for artifact in artifacts]
    missing = [
        artifact
        for artifact, path in zip(artifacts, paths, strict=True)
        if not is_verified(path, artifact.sha256)
    ]
    if not missing:
        return paths
    total_mb = sum(artifact.size_bytes for artifact in missing) / 1e6
    done_mb = 0.0
    report = progress or (lambda _line: None)
    report(f"fetching {len(missing)} Java artifacts, {total_mb:.0f} MB")

    with ThreadPoolExecutor(THREADS) as pool:
        fetched = pool.map(lambda artifact: _fetched(artifact, cache), missing)
        for count, artifact in enumerate(fetched, start=1):
            done_mb += artifact.size_bytes / 1e6
            report(f"{count}/{len(missing)} artifacts, {done_mb:.0f}/{total_mb:.0f} MB")
    return paths


def progress_line(line: str) -> None:
    """Show progress on stderr: one line that overwrites itself on a terminal, else sparse lines."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{line}")
        count, _, total = line.partition(" ")[0].partition("/")
        if count == total:
            sys.stderr.write("\n")
    elif line.startswith("fetching"):
        sys.stderr.write(line + "\n")
    sys.stderr.flush()


def is_verified(path: Path, sha256: str) -> bool:
    """Whether the file is there and has this checksum."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == sha256
    except FileNotFoundError:
        return False


def _fetched(artifact: Artifact, cache: Path) -> Artifact:
    target = cache / "jars" / artifact.filename
    target.parent.mkdir(parents=True, exist_ok=True)
    for attempt in range(1, ATTEMPTS + 1):
        try:
            _download(artifact, target)
        except (OSError, RuntimeError, ValueError, AssertionError) as error:
            if attempt == ATTEMPTS:
                raise ArtifactError(_advice(artifact, cache, error)) from error
            time.sleep(FIRST_RETRY_S * 2 ** (attempt - 1))
        else:
            break
    return artifact


def _download(artifact: Artifact, target: Path) -> None:
    from jgo.maven import MavenContext

    group, name, version, *classifier = _parts(artifact.coordinate)
    private = Path(tempfile.mkdtemp(prefix=".fetch-", dir=target.parent))
    try:
        context = MavenContext(repo_cache=private, local_repos=[], timeout=DOWNLOAD_TIMEOUT_S)
        component = context.project(group, name).at_version(version)
        file = component.artifact(classifier=classifier[0] if classifier else "").resolve()
        if not is_verified(file, artifact.sha256):
            raise ArtifactError("its SHA-256 is not the pinned one")
        Path(file).replace(target)
    finally:
        shutil.rmtree(private, ignore_errors=True)


def _parts(coordinate: str) -> list[str]:
    parts = coordinate.split(":")
    if len(parts) not in (3, 4) or not all(parts):
        raise ArtifactError(f"coordinate {coordinate!r}: expected group:name:version[:classifier]")
    return parts


def _advice(artifact: Artifact, cache: Path, error: Exception) -> str:
    return (
        f"cannot fetch {artifact.coordinate}: {error}. The network must reach the public Maven "
        f"repository once; or put the file as {cache / 'jars' / artifact.filename}."
    )
