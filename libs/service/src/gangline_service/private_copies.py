"""`python -m gangline_service.private_copies FROM TO [--follow]`: copies of files, for their owner.

Kubernetes mounts secrets with files that belong to root, and services take only files of their own
that no other user may read. With `--follow` changed files are copied again, until the process ends.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

from .private_file import write_private

EVERY_S = 5.0


def copy_changed(source: Path, target: Path) -> int:
    """Copy the files of a folder that differ, whole or not at all; how many did.

    Files that are gone from the source are removed. Names that begin with a dot are left out: they
    are Kubernetes' own.
    """
    changed, wanted = 0, set()
    for file in sorted(source.iterdir()):
        if file.name.startswith(".") or not file.is_file():
            continue
        wanted.add(file.name)
        content, copy = file.read_bytes(), target / file.name
        if not copy.exists() or copy.read_bytes() != content:
            write_private(copy, content)
            changed += 1
    for copy in target.iterdir():
        if copy.name not in wanted:
            copy.unlink()
            changed += 1
    return changed


def main(arguments: list[str]) -> None:
    """Copy once, then follow if that is asked for."""
    source, target = (Path(each) for each in arguments[:2])
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    copy_changed(source, target)
    if "--follow" not in arguments:
        return
    # The first process of a container gets no signal that it does not handle.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    while True:
        time.sleep(EVERY_S)
        copy_changed(source, target)


if __name__ == "__main__":
    main(sys.argv[1:])
