"""Which worker takes which files of tests, with `--dist loadfile --no-loadscope-reorder`.

Files that start real processes (`REAL_PROCESSES`) wait for much of their time, and their processes
must get the CPU at once. So each worker has an order of its own (`turns`):
- the first takes the files of tests/e2e, and with them the platforms: one at a time is enough,
- the last one computes, at the lowest priority: it uses what the others leave,
- those between take other files that start processes.
Then all but the last help the others. The longest files begin first (`LONGEST`).

A worker takes a file at a time, except that one takes all files that share processes: these are
started once, and end with the last of these files. They are the files of tests/e2e that use the
session's platform, and others whose names begin alike (`SHARING`).

All workers import all files. Each begins with other folders, so that on a fresh clone one compiles
what the others then load.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

REAL_PROCESSES = ("e2e", "integration", "contract")
LONGEST = tuple(
    f"tests/{name}.py"
    for name in (
        "e2e/test_alerts",  # the first file of the session's platform: with it come all
        "integration/test_mlflow_jobs",
        "integration/test_node_agent_ends",
        "integration/test_mlflow_server",
        "integration/test_node_agent",
        "stateful/test_stateful",
        "e2e/test_bad_days",
        "extremes/test_extremes",
        "integration/test_mlflow_artifacts",
        "integration/test_isolation_two_machines",
        "simulation/test_coverage",
        "integration/test_tracker_crashes",
        "integration/test_node_health",
        "e2e/test_demo",
        "integration/test_mlflow_teams",
    )
)
"""In this order, by the seconds in build/test-report.xml."""

OWN_PLATFORM = {
    f"tests/e2e/test_{name}.py"
    for name in (
        "bad_days",
        "console_empty",
        "demo",
        "install",
        "kills",
        "new_passwords",
        "own_parts",
        "tls",
        "up_without_gpus",
    )
}
SHARED_PLATFORM = "tests/e2e: the session's platform"
SHARING = tuple(
    f"tests/{name}_"
    for name in (
        "contract/test_object_store",
        "integration/test_isolation",
        "integration/test_mlflow",
        "integration/test_tracker",
    )
)
"""Their fixtures of the session are in conftest.py of their folders."""
SHARED_PROCESSES = ("platform", "stand", "tracker", "server", "open_mlflow", "s3_server")
"""The session's fixtures that end with the files that share them: an idle platform takes a third
of a core."""
BROWSER = "chromium"
"""Ends before a file that begins without it: its thread can run no other event loop."""

LOWEST_PRIORITY = 19
FEW = 2
"""So many workers are all alike."""
PLATFORMS, PROCESSES, COMPUTING = "platforms", "processes", "computing"


class Roles(LoadFileScheduling):
    """Gives a worker all tests of a scope, of the kind whose turn it is for this worker."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)

    def _reschedule(self, node: WorkerController) -> None:
        if self.workqueue and not node.shutting_down and self._next_for(node) is None:
            node.shutdown()
            return
        super()._reschedule(node)

    def _assign_work_unit(self, node: WorkerController) -> None:
        scope = self._next_for(node)
        if scope is not None:
            self.workqueue.move_to_end(scope, last=False)
            super()._assign_work_unit(node)

    def _next_for(self, node: WorkerController) -> str | None:
        """The first scope of the queue in the worker's order of turns."""
        given = turns(node.workerinput["workerid"], self.numnodes)
        return next(
            (
                scope
                for turn in given
                for scope, tests in self.workqueue.items()
                if turn_of(next(iter(tests))) == turn
            ),
            None,
        )


def turns(worker: str, count: int) -> tuple[str, ...]:
    """What this one of so many workers takes, first things first."""
    if count > FEW and worker == f"gw{count - 1}":
        return (COMPUTING,)
    if count > FEW and worker != "gw0":
        return (PROCESSES, PLATFORMS, COMPUTING)
    return (PLATFORMS, PROCESSES, COMPUTING)


def turn_of(nodeid: str) -> str:
    """What a test starts."""
    folder = folder_of(nodeid)
    if folder == "e2e":
        return PLATFORMS
    return PROCESSES if folder in REAL_PROCESSES else COMPUTING


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """What only computes leaves the CPU to the others, from its first test on."""
    worker = getattr(session.config, "workerinput", None)
    if worker is not None and turns(worker["workerid"], worker["workercount"]) == (COMPUTING,):
        os.nice(LOWEST_PRIORITY)


def pytest_configure(config: pytest.Config) -> None:
    """Give a worker the folders in an order of its own; the tests are sorted afterwards."""
    worker = getattr(config, "workerinput", None)
    if worker is not None:
        folders = [folder for name in config.args for folder in _folders(name)]
        first = len(folders) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
        config.args = folders[first:] + folders[:first]


def _folders(name: str) -> list[str]:
    """What is in this folder, and in its folder of unit tests; a file is itself."""
    inside = sorted(path for path in Path(name).glob("*/") if any(path.rglob("test_*.py")))
    if not inside or any(Path(name).glob("test_*.py")):
        return [name]
    units = Path(name) / "unit"
    return [
        part for path in inside for part in (_folders(str(path)) if path == units else [str(path)])
    ]


def scope_of(nodeid: str) -> str:
    """What a worker takes at once: a file, or all files that share processes."""
    file = nodeid.split("::", maxsplit=1)[0]
    if folder_of(file) == "e2e" and file not in OWN_PLATFORM:
        return SHARED_PLATFORM
    return next((shared for shared in SHARING if file.startswith(shared)), file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """Replace xdist's distribution by files."""
    return Roles(config, log) if config.getoption("dist") == "loadfile" else None


def folder_of(nodeid: str) -> str:
    """The folder of a test below tests/."""
    return nodeid.removeprefix("tests/").split("/")[0]


def in_order(files: Iterable[str]) -> list[str]:
    """The files of tests in the order in which they are begun."""
    given = list(files)
    folders = {folder: place for place, folder in enumerate(REAL_PROCESSES)}
    longest = {name: place for place, name in enumerate(LONGEST)}

    def place(name: str) -> tuple[int, int]:
        return (
            folders.get(folder_of(name), len(folders)) if name not in longest else -1,
            longest.get(name, 0),
        )

    return sorted(given, key=place)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the tests by their files; those of a file keep their order."""
    names = sorted({item.nodeid.split("::")[0] for item in items})
    place = {name: number for number, name in enumerate(in_order(names))}
    items.sort(key=lambda item: place[item.nodeid.split("::")[0]])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Function, nextitem: pytest.Item | None) -> Generator[None]:
    """On a worker, end shared processes after the last test that shares them, and its teardown."""
    try:
        return (yield)
    finally:
        if nextitem is not None and nextitem.path != item.path:
            if BROWSER not in getattr(nextitem, "fixturenames", ()):
                _end(item, BROWSER)
            last = scope_of(nextitem.nodeid) != scope_of(item.nodeid)
            if last and hasattr(item.config, "workerinput"):
                _end(item, *SHARED_PROCESSES)


def _end(item: pytest.Function, *names: str) -> None:
    fixtures = item.session._fixturemanager
    for name in names:
        for fixture in fixtures.getfixturedefs(name, item) or ():
            fixture.finish(item._request)  # what depends on it ends before it
