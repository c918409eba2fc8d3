"""The environment of a rank: torchrun's variables, Gangline's, the job's, and nothing else."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import psutil

from gangline_schemas.events.scheduling import GangAllocated, NodeAssignment
from gangline_schemas.job import JobSpec
from gangline_schemas.job_pods import pod_domain, pod_host
from gangline_service.loopback import is_loopback
from gangline_worker.agent.host.cdi import GivenDevices
from gangline_worker.agent.host.drivers import driver_variables
from gangline_worker.agent.images.gang_images import GangImage
from gangline_worker.agent.isolation.image_root import NVIDIA

from .mlflow import URI

_OF_TORCH = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
IN, OUT = "in", "out"
"""The folders of the artifacts that a job reads and leaves, beside its code."""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Docker's, for an image without one."""
_OF_NCCL = "NCCL_SOCKET_IFNAME"
_NO_VARIABLES: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class GangPaths:
    """Where a gang's things are on this node. All belong to the agent's user alone."""

    code: Path
    home: Path
    temporary: Path
    checkpoints: Path
    socket: Path
    resume: Path | None = None
    data_cache: Path | None = None

    @property
    def cache(self) -> Path:
        """For what a program made before and needs again: it stays from attempt to attempt."""
        return self.checkpoints / ".cache"


def base_environment(
    paths: GangPaths, image: GangImage | None = None, *, in_pod: bool = False
) -> dict[str, str]:
    """The variables that any program needs; this interpreter's folder is first on PATH.

    In an image those of its ENV, and nothing of this machine's software. A pod has them already.
    """
    if in_pod:
        own = {"HOME": str(paths.home), "TMPDIR": str(paths.temporary)}
        return {"PYTHONUNBUFFERED": "1", **own}
    if image is not None:
        return {
            "PATH": _PATH,
            "LANG": "C.UTF-8",
            "PYTHONUNBUFFERED": "1",
            **image.environment,
            "HOME": str(paths.home),
            "TMPDIR": str(paths.temporary),
        }
    path = [str(Path(sys.executable).parent), "/usr/local/bin", "/usr/bin", "/bin"]
    return {
        "PATH": os.pathsep.join(path),
        "HOME": str(paths.home),
        "TMPDIR": str(paths.temporary),
        "LANG": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",
        **driver_variables(),
    }


def rank_environment(
    allocation: GangAllocated,
    assignment: NodeAssignment,
    local_rank: int,
    paths: GangPaths,
    *,
    gpus: str,
    token: str,
    secrets: Mapping[str, str],
    operators: Mapping[str, str] = _NO_VARIABLES,
    mlflow: Mapping[str, str] = _NO_VARIABLES,
    image: GangImage | None = None,
    devices: GivenDevices | None = None,
    in_pod: bool = False,
    own_network: bool = False,
) -> dict[str, str]:
    """All variables of one rank. `gpus` is its CUDA_VISIBLE_DEVICES, "" if it has none.

    `own_network`: its pod has another network than the node.

    The job's own win over `operators`, and these over what the platform only suggests. With
    another MLflow server in them, `mlflow` is left out: it has a token of the platform.
    """
    spec = allocation.spec
    nodes = sorted(allocation.nodes, key=lambda node: node.first_rank)
    node_rank = [node.first_rank for node in nodes].index(assignment.first_rank)
    own = {**operators, **spec.env, **secrets}
    always = {
        **base_environment(paths, image, in_pod=in_pod),
        **(_of_driver(image, devices) if image is not None and gpus else {}),
        **(
            {}
            if own_network
            else network_variables([node.address for node in nodes], assignment.address)
        ),
        "OMP_NUM_THREADS": str(max(1, int(spec.resources.cpus or spec.resources.cpus_per_gpu))),
        "XDG_CACHE_HOME": str(paths.cache),
        "TORCHINDUCTOR_CACHE_DIR": str(paths.cache / "torchinductor"),
        **(mlflow if URI not in own else {}),
        **own,
        "RANK": str(assignment.first_rank + local_rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(allocation.world_size),
        "LOCAL_WORLD_SIZE": str(len(assignment.ranks)),
        "GROUP_RANK": str(node_rank),
        "GROUP_WORLD_SIZE": str(len(nodes)),
        "ROLE_RANK": str(assignment.first_rank + local_rank),
        "ROLE_WORLD_SIZE": str(allocation.world_size),
        "ROLE_NAME": "default",
        "MASTER_ADDR": allocation.rendezvous.address,
        "MASTER_PORT": str(allocation.rendezvous.port),
        "TORCHELASTIC_RUN_ID": allocation.job_id,
        "TORCHELASTIC_RESTART_COUNT": str(allocation.attempt - 1),
        "TORCHELASTIC_MAX_RESTARTS": str(spec.restart.max),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # in which NVML counts; else the fastest comes first
        "CUDA_VISIBLE_DEVICES": gpus,
        "GANGLINE_JOB_ID": allocation.job_id,
        "GANGLINE_RUN_ID": allocation.job_id,
        "GANGLINE_ATTEMPT": str(allocation.attempt),
        "GANGLINE_NODE_RANK": str(node_rank),
        "GANGLINE_NUM_NODES": str(len(nodes)),
        "GANGLINE_CHECKPOINT_DIR": str(paths.checkpoints),
        "GANGLINE_CHECKPOINT_INTERVAL_S": str(
            allocation.checkpoint_interval_s or spec.checkpoint.interval_minutes * 60
        ),
        "GANGLINE_AGENT_SOCKET": str(paths.socket),
        "GANGLINE_RANK_TOKEN": token,
        "GANGLINE_HYPERPARAMETERS": json.dumps(spec.hyperparameters),
    }
    if allocation.left_out:
        ranges = [part.data() for part in allocation.left_out]
        always["GANGLINE_LEFT_OUT"] = json.dumps(ranges)
    if paths.data_cache is not None:
        always["GANGLINE_DATA_CACHE"] = str(paths.data_cache)
    if own_network:
        always |= pod_network_variables(allocation)
    return always | _asked_for(spec, paths)


def _of_driver(image: GangImage, devices: GivenDevices | None) -> dict[str, str]:
    """In an image: where the node's GPU driver is, or what files of CDI say."""
    if devices is not None:
        name = "LD_LIBRARY_PATH"
        folders = filter(None, (image.environment.get(name), *devices.libraries))
        return {name: os.pathsep.join(folders)} | devices.environment
    parts = {"PATH": ("bin", _PATH), "LD_LIBRARY_PATH": ("lib64", "")}
    return {
        name: os.pathsep.join(
            filter(None, (image.environment.get(name, default), f"{NVIDIA}/{folder}"))
        )
        for name, (folder, default) in parts.items()
    }


def _asked_for(spec: JobSpec, paths: GangPaths) -> dict[str, str]:
    """Variables of what not every job has."""
    found: dict[str, str] = {}
    if spec.checkpoint.incremental is not None:
        found["GANGLINE_CHECKPOINT_FULL_EVERY"] = str(spec.checkpoint.incremental.full_every)
    if paths.resume is not None:
        found["GANGLINE_RESUME_FROM"] = str(paths.resume)
    if spec.checkpoint.promote != "off":
        found["GANGLINE_PROMOTE"] = str(spec.checkpoint.promote)
    if spec.validates:
        found["GANGLINE_VALIDATE"] = "1"
    if spec.training is not None:
        found["GANGLINE_TRAINING"] = spec.training.encode().decode()
    if spec.trial is not None:
        found["GANGLINE_TRIAL"] = spec.trial.encode().decode()
    if spec.seed is not None:
        found["GANGLINE_SEED"] = str(spec.seed)
    if spec.data_snapshot is not None:
        found["GANGLINE_DATA_SNAPSHOT"] = spec.data_snapshot
    if spec.code_ref is not None:
        found["GANGLINE_CODE_REF"] = spec.code_ref
    return found | _artifacts(spec, paths) | _layout(spec)


def _artifacts(spec: JobSpec, paths: GangPaths) -> dict[str, str]:
    """Where the artifacts lie that it reads and leaves."""
    if spec.artifacts is None:
        return {}
    work = paths.code.parent
    return {"GANGLINE_IN": str(work / IN), "GANGLINE_OUT": str(work / OUT)}


def _layout(spec: JobSpec) -> dict[str, str]:
    """Variables by which a program lays itself out over the gang."""
    found: dict[str, str] = {}
    if spec.strategy != "custom":
        found["GANGLINE_STRATEGY"] = spec.strategy
    if spec.resources.min_gpus is not None:
        whole = {"gpus_per_worker": spec.gpus_per_worker}
        found["GANGLINE_RESOURCES"] = spec.resources.model_copy(update=whole).encode().decode()
    if spec.parallel is not None:
        found["GANGLINE_PARALLEL"] = spec.parallel.encode().decode()
    return found


def network_variables(addresses: Iterable[str], own: str) -> dict[str, str]:
    """By which interface the ranks at these addresses meet; `own` is that of this node.

    Gloo would listen at what the machine's name resolves to, which on many is a loopback address
    that no other machine reaches; NCCL would take the first interface that is not loopback, which
    may be a bridge of containers. NCCL takes a name for a prefix, unless it follows a `=`.
    """
    if all(is_loopback(address) for address in addresses):
        return dict.fromkeys((_OF_NCCL, *_OF_TORCH), "lo")
    interface = _interface_of(own)
    if interface is None:
        return {}
    return {_OF_NCCL: f"={interface}", **dict.fromkeys(_OF_TORCH, interface)}


def pod_network_variables(allocation: GangAllocated) -> dict[str, str]:
    """How ranks meet in pods with a network of their own, which no agent is in.

    Rank 0 opens the store. Its pod has a name for the others; within one pod none is needed.
    """
    first = min(allocation.nodes, key=lambda node: node.first_rank)
    name = f"{pod_host(first.node_id)}.{pod_domain(allocation.job_id)}"
    return {
        "MASTER_ADDR": name if len(allocation.nodes) > 1 else "127.0.0.1",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


def _interface_of(address: str) -> str | None:
    """The one that has this address; None: none has, as behind a translation of addresses."""
    try:
        found = {str(place[4][0]) for place in socket.getaddrinfo(address, None)}
    except OSError:
        return None
    for name, own in psutil.net_if_addrs().items():
        if found & {item.address.partition("%")[0] for item in own}:
            return name
    return None


def rank_command(spec: JobSpec, image: GangImage | None = None) -> tuple[str, ...]:
    """The command to run: the job's command, or its shell line, else that of the image."""
    if spec.run is not None:
        return ("/bin/sh", "-c", spec.run)
    if spec.command or image is None:
        return spec.command
    return image.command
