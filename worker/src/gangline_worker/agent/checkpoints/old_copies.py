"""Deletes bundles and checkpoint copies of jobs that ended elsewhere or without an agent here.

A job's copies are deleted when its node reads that the job ended. A node whose gang ran on other
nodes by then deletes copies that were unused for long: the store has them all.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from gangline_worker.agent.host.trees import delete_tree, entries

KEPT_S = 48 * 3600.0
"""Twice as long as a job may go without a save."""


def note_use(*paths: Path) -> None:
    """These are wanted now: they count as new, if they are there."""
    for path in paths:
        with contextlib.suppress(OSError):
            os.utime(path, follow_symlinks=False)


def delete_unused(data: Path, now_s: float, *, idle: bool = False) -> None:
    """Delete bundles and checkpoints below `data` that were last used before `now_s` - KEPT_S.

    `idle`: no rank runs here, so folders that jobs would save to are deleted too. A file that
    cannot be deleted stays.
    """
    before_s = now_s - KEPT_S
    for bundle in entries(data / "bundles"):
        if _used_s(bundle) < before_s:
            with contextlib.suppress(OSError):
                bundle.unlink()
    for job in entries(data / "checkpoints"):
        attempts = list(entries(job))
        if max(map(_used_s, (job, *attempts))) >= before_s:
            continue
        for gone in (job,) if idle else attempts:
            delete_tree(gone)


def _used_s(path: Path) -> float:
    try:
        found = path.lstat()
        return min(found.st_mtime, found.st_ctime)  # a program can set the first to any time
    except OSError:  # it has just gone
        return 0.0
