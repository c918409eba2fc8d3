"""Whose memory a rank lacked: that of its gang, or of a process that was there before."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pynvml
import pytest

from gangline_worker.agent.health.gpu_memory import taken_by_others

GIB = 1 << 30
WORDS = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {tried}. GPU 0 has a total "
    "capacity of 79.18 GiB of which {free} is free. Process 7 has 70.00 GiB memory in use. "
    "Including non-PyTorch memory, this process has 8.00 GiB memory in use."
)
TWO_LACKING_ONE = WORDS.format(tried="2.00 GiB", free="1.00 GiB")


@pytest.fixture
def other() -> Iterator[int]:
    """A process that is of no gang."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process.pid
        process.kill()


def now_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) + 1.0


def on_gpus(monkeypatch: pytest.MonkeyPatch, *gpus: list[tuple[int, int | None]]) -> None:
    """NVML says that these processes (pid, bytes) are on the GPUs 0, 1, ..."""

    def processes(index: int) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in gpus[index]]

    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetComputeRunningProcesses", processes)


def taken(words: str, own: int = 0, begun_s: float | None = None, gpus: tuple[int, ...] = (0,)):
    return taken_by_others(
        words, gpus, lambda pid: pid == own, now_s() if begun_s is None else begun_s
    )


def test_a_process_that_was_there_before_has_the_memory(
    monkeypatch: pytest.MonkeyPatch, other: int
) -> None:
    on_gpus(monkeypatch, [], [(other, 70 * GIB)])
    assert taken(TWO_LACKING_ONE, gpus=(0, 1))
    assert taken("RuntimeError: CUDA error: out of memory", gpus=(1,))
    assert taken("Last error:\nCuda failure 2 'out of memory'", gpus=(1,))
    assert not taken(TWO_LACKING_ONE, gpus=(0,)), "it is on no GPU of the gang"


@pytest.mark.parametrize(
    ("words", "used"),
    [
        (WORDS.format(tried="25.96 GiB", free="1.00 GiB"), 4 * GIB),  # too large in any case
        (WORDS.format(tried="20.00 MiB", free="10.00 MiB"), GIB // 3),  # a context alone
        (WORDS.format(tried="2.00 GiB", free="0 bytes"), None),  # the driver does not say it
        ("torch.OutOfMemoryError: HIP out of memory.", 70 * GIB),
        ("numpy.core._exceptions.MemoryError: CUDA is fine", 70 * GIB),
    ],
)
def test_a_job_that_does_not_fit_is_not_explained_by_others(
    monkeypatch: pytest.MonkeyPatch, other: int, words: str, used: int | None
) -> None:
    on_gpus(monkeypatch, [(other, used)])
    assert not taken(words)


def test_neither_the_gangs_processes_nor_younger_ones_are_others(
    monkeypatch: pytest.MonkeyPatch, other: int
) -> None:
    on_gpus(monkeypatch, [(other, 70 * GIB)])
    assert not taken(TWO_LACKING_ONE, own=other)
    assert not taken(TWO_LACKING_ONE, begun_s=now_s() - 3600), "as a child of a rank that died"


def test_a_process_that_is_gone_has_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["true"]) as process:
        gone = process.pid
    on_gpus(monkeypatch, [(gone, 70 * GIB)])
    assert not taken(TWO_LACKING_ONE)


def test_a_driver_that_refuses_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    on_gpus(monkeypatch, [])

    def refuses(_: int) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetComputeRunningProcesses", refuses)
    assert not taken(TWO_LACKING_ONE)
