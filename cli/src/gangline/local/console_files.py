"""The console's files from elsewhere: htmx, uPlot and ECharts, out of pinned webjars.

They are extracted into `static/vendor` of the installed package `gangline_console`, with a stamp
that names the pins. `make setup` does it (`python -m gangline.local.console_files`), and
`gangline up` where they are missing or of other pins. A wheel that is built afterwards has them.
"""

from __future__ import annotations

import hashlib
import os
import sys
import zipfile
from collections.abc import Sequence
from importlib import resources
from importlib.util import find_spec
from pathlib import Path

from gangline.local.artifacts import (
    Artifact,
    ArtifactError,
    Progress,
    default_cache,
    fetch_all,
    parse_pins,
    progress_line,
)

MEMBERS = {
    "echarts": ("dist/echarts.min.js",),
    "htmx.org": ("dist/htmx.min.js",),
    "uplot": ("dist/uPlot.iife.min.js", "dist/uPlot.min.css"),
}
"""By webjar: the files of it that pages load."""
_STAMP = "pins.sha256"


def prepare(progress: Progress | None = None, cache: Path | None = None) -> Path:
    """Return the folder once all files are there. Raises ArtifactError.

    Files come into place whole, and the stamp last, so several processes may do this at once.
    """
    folder = vendor_folder()
    pins = resources.files(__package__).joinpath("console_jars.txt").read_text("utf-8")
    stamp = hashlib.sha256(f"{pins}{sorted(MEMBERS.items())}".encode()).hexdigest()
    if _read(folder / _STAMP) == stamp:
        return folder
    artifacts = parse_pins(pins)
    jars = fetch_all(artifacts, cache or default_cache(), progress)
    try:
        extract(artifacts, jars, folder)
        _write(folder / _STAMP, stamp.encode())
    except OSError as error:
        raise ArtifactError(
            f"the console's files cannot be written: {error}. Run "
            "`python -m gangline.local.console_files` as a user who may write there."
        ) from error
    return folder


def extract(artifacts: Sequence[Artifact], jars: Sequence[Path], folder: Path) -> None:
    """Write the `MEMBERS` of webjars into a folder. Raises OSError or KeyError."""
    folder.mkdir(parents=True, exist_ok=True)
    for artifact, jar in zip(artifacts, jars, strict=True):
        _, name, version = artifact.coordinate.split(":")
        with zipfile.ZipFile(jar) as opened:
            for member in MEMBERS[name]:
                path = f"META-INF/resources/webjars/{name}/{version}/{member}"
                _write(folder / Path(member).name, opened.read(path))


def vendor_folder() -> Path:
    """Where the installed console looks for them. Raises ArtifactError where there is none."""
    spec = find_spec("gangline_console")
    if spec is None or not spec.submodule_search_locations:
        raise ArtifactError("the package gangline-console is not installed: run `make setup`")
    return Path(spec.submodule_search_locations[0]) / "static" / "vendor"


def _read(path: Path) -> str:
    return path.read_text("utf-8") if path.exists() else ""


def _write(path: Path, content: bytes) -> None:
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_bytes(content)
    fresh.replace(path)


def main() -> None:
    """Fetch and extract them; without a traceback when that fails."""
    try:
        prepare(progress_line)
    except ArtifactError as error:
        sys.exit(f"the console's files: {error}")


if __name__ == "__main__":
    main()
