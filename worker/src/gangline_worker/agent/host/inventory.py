"""The resources of this node: GPUs by NVML, or CPU slots in their place, memory and ports."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import structlog

from gangline_schemas.events.heartbeats import GpuStatus
from gangline_schemas.events.workers import GpuInfo, NodeInfo
from gangline_schemas.features import RELEASE
from gangline_schemas.gpus import is_display_card, offered_name
from gangline_worker.agent.host.addresses import loopback_of
from gangline_worker.agent.host.visible_gpus import NoSuchGpu, visible_gpus

log = structlog.get_logger(__name__)

_GIB = 1024**3
_DISPLAY = "0x03"
_ACCELERATOR = "0x0302"
"""Classes of PCI: all display controllers, and 3D controllers, which drive no display."""


class DriverUnusable(Exception):
    """GPUs have a driver here that does not work: such a node must not pass for one of CPUs."""


@dataclass(frozen=True, slots=True)
class Labels:
    """How the node is named and where it stands."""

    node_id: str
    incarnation: str
    address: str
    rack: str
    block: str
    more: Mapping[str, str] = field(default_factory=dict)


def node_name(hostname: str) -> str:
    """A hostname as an identifier: lower case, at most 63 of a-z, 0-9 and '-'."""
    name = (
        re.sub(r"[^a-z0-9-]+", "-", hostname.split(".", maxsplit=1)[0].lower())
        .strip("-")[:63]
        .strip("-")
    )
    return name or "node"


def find_gpus() -> tuple[GpuInfo, ...]:
    """The GPUs that answer NVML and are visible to this process, without display cards.

    () where there are none, and where CUDA_VISIBLE_DEVICES is empty.

    Raises:
        DriverUnusable: there is one, and it or no GPU of it works, or none has a visible name.
    """
    import pynvml

    try:
        pynvml.nvmlInit()
        visible = visible_gpus(pynvml.nvmlDeviceGetCount())
    except NoSuchGpu as error:
        raise DriverUnusable(str(error)) from None
    except pynvml.NVMLError as error:
        if error.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
            return ()
        # An agent that starts before its driver would offer CPU slots beside idle GPUs.
        if error.value == pynvml.NVML_ERROR_DRIVER_NOT_LOADED and not has_nvidia(_ACCELERATOR):
            return ()
        raise _unusable(str(error)) from error
    found, displays = [], 0
    for index in visible:
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            name = str(pynvml.nvmlDeviceGetName(handle))
            memory_gib = pynvml.nvmlDeviceGetMemoryInfo(handle).total / _GIB
        except pynvml.NVMLError as error:  # its health tells the same, and the node does not join
            log.warning("gpu.not_offered", index=index, error=str(error))
            continue
        if is_display_card(name, memory_gib):
            log.info("gpu.display_card", index=index, name=name, memory_gib=round(memory_gib, 1))
            displays += 1
            continue
        model = offered_name(name, memory_gib)
        found.append(GpuInfo(index=index, model=model, memory_gb=memory_gib))
    if len(visible) > displays and not found:
        raise _unusable(f"none of {len(visible) - displays} GPUs answers")
    return tuple(found)


def has_nvidia(kind: str = _DISPLAY, devices: Path = Path("/sys/bus/pci/devices")) -> bool:
    """Whether the machine has a device of NVIDIA whose PCI class begins so."""
    for device in devices.glob("*"):
        with contextlib.suppress(OSError):
            vendor = (device / "vendor").read_text("ascii").strip()
            found = (device / "class").read_text("ascii").strip()
            if vendor == "0x10de" and found.startswith(kind):
                return True
    return False


def gpu_names(index: int) -> tuple[str, ...]:
    """The names of a GPU in files of CDI: its UUID, if NVML says it, and its index."""
    import pynvml

    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        uuid = pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(index))
        return str(uuid), str(index)
    return (str(index),)


def _unusable(why: str) -> DriverUnusable:
    return DriverUnusable(f"GPUs cannot be used ({why}): fix the driver, or set GANGLINE_SLOTS")


def gpu_statuses(indexes: tuple[int, ...]) -> tuple[GpuStatus, ...]:
    """The present use of these GPUs; a value that cannot be read is left out. NVML must be open.

    It may take as long as the driver likes.
    """
    if not indexes:
        return ()
    import pynvml

    found = []
    for index in indexes:
        utilization = used = temperature = None
        with contextlib.suppress(pynvml.NVMLError):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            utilization = float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
            used = pynvml.nvmlDeviceGetMemoryInfo(handle).used / _GIB
            temperature = float(
                pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)
            )
        found.append(
            GpuStatus(
                index=index,
                utilization=utilization,
                memory_used_gb=used,
                temperature_c=temperature,
            )
        )
    return tuple(found)


def take_inventory(
    labels: Labels,
    *,
    slots: int | None,
    ports: tuple[int, ...],
    cpus: float | None = None,
    memory_gb: float | None = None,
) -> NodeInfo:
    """The node as it offers itself. `slots` CPU slots are offered instead of GPUs when given.

    Without both, one slot for each CPU. With 0 slots it takes jobs without GPUs alone. `ports` are
    its rendezvous ports. `cpus`, `memory_gb`: offered instead of what the machine has.
    """
    memory_gb = memory_gb or psutil.virtual_memory().total / _GIB
    here = len(os.sched_getaffinity(0))
    gpus = find_gpus() if slots is None else ()
    if not gpus:
        count = slots if slots is not None else here
        gpus = tuple(
            GpuInfo(index=index, model="cpu", memory_gb=memory_gb / count) for index in range(count)
        )
    return NodeInfo(
        node_id=labels.node_id,
        incarnation=labels.incarnation,
        address=labels.address,
        hostname=socket.gethostname(),
        rack=labels.rack,
        block=labels.block,
        labels=dict(labels.more),
        gpus=gpus,
        cpu_only=not gpus,
        cpus=cpus or float(here),
        memory_gb=memory_gb,
        rendezvous_ports=ports,
        release=RELEASE,
        loopback=loopback_of(labels.address),
    )
