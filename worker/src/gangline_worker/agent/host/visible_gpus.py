"""The GPUs that this process may use, as its CUDA_VISIBLE_DEVICES says; NVML always has all.

NVIDIA_VISIBLE_DEVICES is for the runtime of containers: in one, NVML has those GPUs alone.
"""

from __future__ import annotations

import os

VARIABLE = "CUDA_VISIBLE_DEVICES"
_NONE = frozenset({"", "-1", "NoDevFiles"})
"""The last one is Slurm's, for a job without GPUs."""


class NoSuchGpu(ValueError):
    """CUDA_VISIBLE_DEVICES names no GPU that can be offered; the message says the way out."""


def visible_gpus(count: int) -> tuple[int, ...]:
    """Indexes of NVML, of `count` GPUs in all. NVML must be open.

    As in CUDA, a GPU is named by its index or by the beginning of its UUID, and a name that does
    not fit ends the list. Indexes are of the order of NVML (PCI_BUS_ID).

    Raises:
        NoSuchGpu: the first name does not fit, or one is of a part of a GPU (MIG).
    """
    said = os.environ.get(VARIABLE)
    if said is None:
        return tuple(range(count))
    if said.strip() in _NONE:
        return ()
    found: set[int] = set()
    for name in said.split(","):
        index = _index_of(name.strip(), count)
        if index is None:
            break
        found.add(index)
    if not found:
        raise NoSuchGpu(
            f"{VARIABLE} is {said[:200]!r}, which names none of {count} GPUs: name others by index "
            "or UUID (nvidia-smi -L), or unset it"
        )
    return tuple(sorted(found))


def _index_of(name: str, count: int) -> int | None:
    if name.upper().startswith("MIG-"):
        raise NoSuchGpu(f"{VARIABLE} names {name[:100]!r}: only whole GPUs are offered, no MIG")
    if name.isdecimal():
        return int(name) if int(name) < count else None
    if not name.upper().startswith("GPU-"):
        return None
    fits = [index for index in range(count) if _uuid(index).startswith(name.lower())]
    return fits[0] if len(fits) == 1 else None


def _uuid(index: int) -> str:
    """In lower case; "" where the GPU does not say it."""
    import pynvml

    try:
        return str(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(index))).lower()
    except pynvml.NVMLError:
        return ""
