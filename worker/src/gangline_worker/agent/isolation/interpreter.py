"""Where this Python lies: what its programs must find in folders that others may not pass through.

Its executable is often reached by links (of a virtual environment, a version manager, a
distribution) that lie elsewhere than itself. Where one of them is missing, Python does not start.
"""

from __future__ import annotations

import errno
import stat
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

LINKS = 40
"""As many as Linux follows in one name."""


def interpreter_places() -> Sequence[Path]:
    """The folders that a Python program of this environment reads, and the links on the way there.

    Raises OSError when the executable is reached by a loop of links.
    """
    started_in = 0 if sys.flags.safe_path else 1  # the agent's own folder, or that of its script
    named = (sys.base_prefix, sys.prefix, *sys.path[started_in:])
    found = [Path(name).absolute() for name in named if name and Path(name).exists()]
    return places_of([*found, Path(sys.executable)])


def places_of(named: Iterable[Path]) -> Sequence[Path]:
    """Where these absolute paths really lead to, and each link on the way, all by real names.

    None lies below another: what is in a folder comes with it. Raises OSError for a loop of links.
    """
    found: set[Path] = set()
    for path in named:
        real, links = follow(path)
        found.update((real, *links))
    return sorted(path for path in found if not any(parent in found for parent in path.parents))


def follow(path: Path) -> tuple[Path, Sequence[Path]]:
    """The real name of an absolute path, and those of the links that lead there, in turn.

    Raises OSError that names a link of a loop.
    """
    here, links = Path("/"), list[Path]()
    ahead = [*reversed(path.parts[1:])]
    while ahead:
        name = ahead.pop()
        if name == "..":
            here = here.parent
            continue
        here /= name
        if not here.is_symlink():
            continue
        if len(links) == LINKS:
            raise OSError(errno.ELOOP, f"too many links or a loop of them at {here}, from {path}")
        links.append(here)
        target = here.readlink()
        here = Path("/") if target.is_absolute() else here.parent
        ahead.extend(part for part in reversed(target.parts) if part != target.anchor)
    return here, links


def closed_above(paths: Iterable[Path]) -> Sequence[Path]:
    """The folders above these that users may not pass through: hiding one takes nothing from them.

    Raises OSError.
    """
    above = {parent for path in paths for parent in path.parents}
    return sorted(folder for folder in above if not folder.stat().st_mode & stat.S_IXOTH)
