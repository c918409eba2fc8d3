"""The requests and limits of a gang's pod on its node."""

from __future__ import annotations

from dataclasses import dataclass

from gangline_kube.core.resource import Object
from gangline_schemas.rank_limits import rank_share, shared_memory_bytes
from gangline_schemas.resources import Resources

_MIB, _MIB_OF_GB = 1 << 20, 1024


@dataclass(frozen=True, slots=True)
class Place:
    """A node of Kubernetes by its name, and what it has for pods. 0 GPUs: they are not known."""

    name: str
    cpus: float = 0.0
    memory_gb: float = 0.0
    gpus: int = 0


@dataclass(frozen=True, slots=True)
class PodResources:
    """CPUs and MiB of memory that a pod's ranks have for sure, and those that they may use."""

    cpus: float
    memory_mib: int
    most_cpus: float
    most_memory_mib: int

    @property
    def requests(self) -> Object:
        """As a container's requests: what the scheduler allocated."""
        return _resources(self.cpus, self.memory_mib)

    @property
    def limits(self) -> Object:
        """As a container's limits."""
        return _resources(self.most_cpus, self.most_memory_mib)

    @property
    def shared_memory(self) -> str:
        """The size of /dev/shm."""
        return f"{shared_memory_bytes(self.most_memory_mib * _MIB) // _MIB}Mi"


def pod_resources(need: Resources, ranks: int, place: Place) -> PodResources:
    """Of so many ranks of a gang that needs this. A job without GPUs has no more than it asked."""
    if need.gpus == 0:
        cpus, memory_mib = need.cpus or 0.0, _mib(need.memory_gb or 0.0)
        return PodResources(cpus, memory_mib, cpus, memory_mib)
    most_cpus = rank_share(need.cpus_per_gpu, place.cpus, place.gpus)
    most_memory_gb = rank_share(need.memory_per_gpu_gb, place.memory_gb, place.gpus)
    return PodResources(
        need.cpus_per_gpu * ranks,
        _mib(need.memory_per_gpu_gb * ranks),
        most_cpus * ranks,
        _mib(most_memory_gb * ranks),
    )


def _mib(memory_gb: float) -> int:
    return max(1, int(memory_gb * _MIB_OF_GB))


def _resources(cpus: float, memory_mib: int) -> Object:
    return {"cpu": f"{max(1, int(cpus * 1000))}m", "memory": f"{memory_mib}Mi"}
