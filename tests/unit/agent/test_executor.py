"""What the agent's loop, which renews the lease, does not wait for."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

from gangline_worker.agent.decide.effects import CloseGang
from gangline_worker.agent.decide.keys import GangKey, Moment
from gangline_worker.agent.executor import Executor, Parts
from gangline_worker.agent.inbox import Inbox

GANG = GangKey("job-1", 1)


class Deletes:
    """Deletes once it may; `done` says what."""

    def __init__(self) -> None:
        self.may = threading.Event()
        self.done: list[str] = []

    def clear(self, key: GangKey) -> None:
        self.may.wait(10)
        self.done.append(f"work of {key.job_id}")

    def forget(self, job_id: str) -> None:
        self.may.wait(10)
        self.done.append(f"copies of {job_id}")

    def release_image(self, key: GangKey) -> None:
        """There is none."""

    def stop(self) -> None:
        """Nothing is prepared."""


def executor_with(deletes: Deletes) -> Executor:
    nothing: Any = SimpleNamespace(close=lambda _: None, leave=lambda _: None)
    parts = Parts(
        Inbox(),
        nothing,
        cast("Any", deletes),
        cast("Any", deletes),
        nothing,
        None,
        None,
        lambda: None,
        nothing,
        nothing,
        {},
    )
    executor = Executor(parts)
    executor._workspaces[GANG] = nothing
    return executor


def test_the_loop_does_not_wait_until_a_jobs_copies_are_deleted() -> None:
    deletes = Deletes()
    executor = executor_with(deletes)
    executor.execute(CloseGang(GANG, final=True), cast("Moment", None))
    assert deletes.done == []
    assert not executor.idle
    deletes.may.set()
    executor.stop()
    assert deletes.done == ["work of job-1", "copies of job-1"]


def test_an_agent_that_stops_has_deleted_what_its_gangs_had() -> None:
    deletes = Deletes()
    executor = executor_with(deletes)
    deletes.may.set()
    executor.stop()
    assert deletes.done == ["work of job-1"]
