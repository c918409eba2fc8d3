"""What the agent's loop, which renews the lease, does not wait for."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pynvml
import pytest

from gangline_schemas.events.workers import GpuInfo
from gangline_worker.agent.decide.effects import CloseGang
from gangline_worker.agent.decide.inputs import RankExited
from gangline_worker.agent.decide.keys import GangKey, Moment, RankKey
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


def executor_with(deletes: Deletes, node: object = None) -> Executor:
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
        cast("Any", node),
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


def test_an_exit_says_that_another_process_has_the_memory_of_the_gangs_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpus = (GpuInfo(index=3, model="h100-80gb", memory_gb=80),)
    executor = executor_with(Deletes(), SimpleNamespace(gpus=gpus))
    executor._workspaces[GANG] = cast("Any", SimpleNamespace(assignment=SimpleNamespace(gpus=(3,))))
    monkeypatch.setattr(executor.launcher, "begun_s", lambda _: time.time())
    holder = SimpleNamespace(pid=1, usedGpuMemory=70 << 30)  # older than any rank
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
    monkeypatch.setattr(
        pynvml, "nvmlDeviceGetComputeRunningProcesses", lambda index: [holder] if index == 3 else []
    )
    failed = RankExited(
        RankKey(GANG, 0), code=1, out_of_memory=True, last_words="CUDA out of memory."
    )
    executor._rank_exited(failed)
    assert executor._inbox.take(1.0) == [replace(failed, gpu_memory_taken=True)]
    executor._rank_exited(replace(failed, code=None, signal=9))  # the kernel's kill
    assert executor._inbox.take(1.0) == [replace(failed, code=None, signal=9)]
