"""The order in which `--dist loadfile --no-loadscope-reorder` gives files to the workers.

Files of unit tests, and of folders that are not named here, come first. Then come the files that
start real processes, those of tests/e2e first because they take longest. Files that only compute
are spread evenly among them, the longest first: some workers compute while others wait for their
processes, and the last files are short.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pytest

REAL_PROCESSES = ("e2e", "integration", "contract")
COMPUTING = ("simulation", "stateful", "extremes", "replay", "golden", "scenarios")


def folder_of(nodeid: str) -> str:
    """The folder of a test below tests/."""
    return nodeid.removeprefix("tests/").split("/")[0]


def in_order(files: Iterable[str]) -> list[str]:
    """The files of tests in the order in which they are run."""
    known = list(files)
    processes = _of(REAL_PROCESSES, known)
    computing = _of(COMPUTING, known)
    spread = {*processes, *computing}
    first = [name for name in known if name not in spread]
    return [*first, *_spread(computing, processes)]


def _of(folders: Sequence[str], known: Sequence[str]) -> list[str]:
    """The files of these folders, in the order of the folders."""
    return [name for folder in folders for name in known if folder_of(name) == folder]


def _spread(few: Sequence[str], many: Sequence[str]) -> Iterator[str]:
    """All of both, each in its own order, the first evenly among the second."""
    places = [((index + 0.5) / len(few), name) for index, name in enumerate(few)]
    places += [((index + 0.5) / len(many), name) for index, name in enumerate(many)]
    return (name for _, name in sorted(places, key=lambda place: place[0]))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the tests by their files; those of a file keep their order."""
    names = dict.fromkeys(item.nodeid.split("::")[0] for item in items)
    place = {name: number for number, name in enumerate(in_order(names))}
    items.sort(key=lambda item: place[item.nodeid.split("::")[0]])
