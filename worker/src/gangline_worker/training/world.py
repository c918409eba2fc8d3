"""Joining the ranks of a gang: gloo on CPUs, NCCL on GPUs."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from gangline_worker.gang_store import gang_store
from gangline_worker.training.config import TrainConfig
from gangline_worker.training.control import open_control


@dataclass(frozen=True)
class World:
    """This rank's place. `control` carries agreements between steps."""

    rank: int
    size: int
    device: torch.device
    control: dist.ProcessGroup


def join_world(timeout_s: float) -> World:
    """Join the ranks that the environment names, as torchrun does; alone without RANK."""
    if "RANK" not in os.environ:
        os.environ.update(
            {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
        )
        os.environ["MASTER_PORT"] = str(_free_port())
    if os.environ["MASTER_ADDR"] in {"127.0.0.1", "localhost"}:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # else it listens on the host's address
    timeout = timedelta(seconds=timeout_s)
    device = own_device()
    if device.type == "cuda":
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", timeout=timeout, device_id=device)
    else:
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        dist.init_process_group("gloo", timeout=timeout)
    rank, size = dist.get_rank(), dist.get_world_size()
    control = open_control(gang_store("control"), rank, size, timeout_s)
    return World(rank, size, device, control)


def own_device() -> torch.device:
    """This rank's GPU; the CPU where it is given none.

    Raises:
        RuntimeError: it is given GPUs that CUDA cannot use; the CPU would train for ever.
    """
    if torch.cuda.is_available():
        index = int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()
        return torch.device("cuda", index)
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if named not in {"", "-1"}:
        raise RuntimeError(
            f"no CUDA-capable device can be used, and CUDA_VISIBLE_DEVICES is {named!r}: "
            "is the driver too old for this torch?"
        )
    return torch.device("cpu")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def compute_dtype(config: TrainConfig, device: torch.device) -> torch.dtype:
    """In what the matrix work is done; bfloat16 is a hundred times slower on CPUs."""
    if config.dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return torch.bfloat16 if config.dtype == "bfloat16" else torch.float32
