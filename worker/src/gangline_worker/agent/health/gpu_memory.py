"""Whether a process that is not of a gang has the GPU memory that a rank of it lacked.

torch names the processes on its GPU when an allocation fails, but in a sandbox their pids are not
the machine's. So NVML says which there are, and the kernel since when.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence

import pynvml

from gangline_worker.agent.host.sweep import started_s

_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_AMOUNT = r"([\d.]{1,20}) (bytes|[KMG]iB)"
_FAILED = re.compile(r"CUDA out of memory|CUDA error: out of memory|Cuda failure(?: 2)? 'out of")
"""Of torch's allocator, of another call of CUDA by torch, and of one by NCCL."""
_TRIED = re.compile(rf"Tried to allocate {_AMOUNT}\. [^\n]{{0,80}} of which {_AMOUNT} is free")
_LEAST_BYTES = 1 << 30
"""A process that only has a context on a GPU takes less, whichever GPU it is."""
_ANSWER_S = 5.0

IsOwn = Callable[[int], bool]


def taken_by_others(words: str, gpus: Sequence[int], is_own: IsOwn, begun_s: float) -> bool:
    """Whether others have as much memory of one of these GPUs as a rank lacked, by its last words.

    Others are processes that are older than `begun_s` (seconds since the machine started) and not
    its gang's own. False also where NVML does not answer in time. `gpus` are indexes of NVML.
    """
    if not _FAILED.search(words):
        return False
    least = max(_LEAST_BYTES, _lacking_bytes(words))
    found: list[int] = []

    def ask() -> None:
        pynvml.nvmlInit()
        found.extend(_bytes_of_others(index, is_own, begun_s) for index in gpus)

    # A driver that hangs holds up no report of an exit.
    asks = threading.Thread(target=_unless_refused(ask), name="gpu-memory", daemon=True)
    asks.start()
    asks.join(_ANSWER_S)
    return any(others >= least for others in list(found))


def _lacking_bytes(words: str) -> int:
    """By how much the last allocation that failed was too large; 0 if the words do not say it."""
    said = [*_TRIED.finditer(words)]
    if not said:
        return 0
    tried, tried_unit, free, free_unit = said[-1].groups()
    return int(float(tried) * _UNITS[tried_unit] - float(free) * _UNITS[free_unit])


def _bytes_of_others(index: int, is_own: IsOwn, begun_s: float) -> int:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    total = 0
    for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
        since_s = started_s(process.pid)
        if since_s is not None and since_s < begun_s and not is_own(process.pid):
            total += process.usedGpuMemory or 0  # None: the driver does not say it
    return total


def _unless_refused(ask: Callable[[], None]) -> Callable[[], None]:
    def asked() -> None:
        try:
            ask()
        except pynvml.NVMLError:
            return

    return asked
