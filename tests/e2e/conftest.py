"""The session's platform is idle after each test that used it, whether that passed or failed.

So a test that fails, or whose fixtures do, costs no other test its GPUs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from gangline.errors import CliError
from gangline.local.client import Client
from gangline.sdk import Gangline, connect
from gangline_schemas.job import JobState
from support.fixtures.platform import RunningPlatform, shared_platform
from support.harnesses.log_watch import LogWatch
from support.waiting import wait_until

DRAINED = {"draining", "cordoned"}
UNENDED = [state.value for state in JobState if not state.terminal]

_UNUSABLE = pytest.StashKey[str]()


@pytest.fixture
def watch(platform: RunningPlatform) -> Iterator[LogWatch]:
    """What is decided from now on."""
    with platform.watching() as watch:
        yield watch


@pytest.fixture
def client(platform: RunningPlatform) -> Iterator[Gangline]:
    """The SDK with an admin's token."""
    with connect(platform.client.url, platform.client.token) as found:
        yield found


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Path]:
    """Open it by touching it; it is open at the end, so that no job outlives its test."""
    path = tmp_path / "gate"
    yield path
    path.touch()


def pytest_runtest_setup(item: pytest.Function) -> None:
    """No test waits in vain for a platform that could not be made idle."""
    after = item.config.stash.get(_UNUSABLE, None)
    if after is not None and "platform" in item.fixturenames:
        pytest.fail(f"the shared platform could not be made idle after {after}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Function) -> Generator[None]:
    """After the test's own fixtures; the end of the session needs none of it."""
    try:
        return (yield)
    finally:
        running = shared_platform(item.config)
        if running is not None and "platform" in item.fixturenames:
            item.config.stash[_UNUSABLE] = item.nodeid
            make_idle(running.client)
            del item.config.stash[_UNUSABLE]


def make_idle(client: Client) -> None:
    """Admit gangs to drained nodes, stop studies, cancel all jobs, and wait for their ends.

    One request for the nodes, the studies and the jobs each, where there is nothing to do.
    """
    with connect(client.url, client.token) as gateway:
        wait_until("nodes that take gangs", lambda: _undrained(gateway))
        wait_until("the ends of all studies", lambda: _stopped(gateway))
        wait_until("the ends of all jobs", lambda: _cancelled(gateway))


def _undrained(gateway: Gangline) -> bool:
    drained = [node.node_id for node in gateway.nodes() if node.status in DRAINED]
    for node_id in drained:
        gateway.drain(node_id, drain=False)
    return not drained


def _stopped(gateway: Gangline) -> bool:
    left = [study.study_id for study in gateway.studies(states=["running", "ending"])]
    for study_id in left:
        with contextlib.suppress(CliError):  # it has just ended
            gateway.stop_study(study_id)
    return not left


def _cancelled(gateway: Gangline) -> bool:
    """Whether all have ended; a cancel that was requested before changes nothing."""
    left = [job.job_id for job in gateway.list(states=UNENDED)]
    for job_id in left:
        with contextlib.suppress(CliError):  # it has just ended
            gateway.cancel(job_id)
    return not left
