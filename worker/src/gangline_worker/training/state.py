"""The state of a checkpoint: weights, optimizer, step, data position, RNG, and the settings."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import torch
from pydantic import JsonValue
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate

from gangline_schemas.base import Model
from gangline_schemas.events.workers import SampleRange
from gangline_worker.training.config import TrainConfig


class RngState(Model):
    """The random generators of one rank, as hex."""

    torch_cpu: str
    torch_cuda: str | None = None
    numpy: str
    python: str


class Evaluation(Model):
    """A loss in nats a byte over the samples at a position."""

    position: int
    samples: int
    loss: float


class TrainState(Model):
    """All that is not a tensor. The lr schedule is a function of `step`.

    The data is one of `position`, the samples used so far, and of `left_out`, those that are not.
    Both are places in an order, which is by `data_order` (None: of an earlier release).
    `evaluation` is what fresh processes must find, where checkpoints are to be promoted.
    """

    step: int
    position: int
    config_digest: str
    data_digest: str
    code_ref: str | None = None
    rng: RngState
    evaluation: Evaluation | None = None
    left_out: tuple[SampleRange, ...] = ()
    data_order: dict[str, int | float] | None = None

    def as_json(self) -> dict[str, JsonValue]:
        """As it stands in a manifest."""
        found: dict[str, JsonValue] = self.model_dump(mode="json")
        return found


def build_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    """AdamW, decaying matrices alone, with its state made at once, so that it can be loaded."""
    named = list(model.named_parameters())
    groups: dict[tuple[float, object], list[nn.Parameter]] = {}
    for _, parameter in named:  # one fused update is of tensors on one device mesh
        decay = config.weight_decay if parameter.ndim > 1 else 0.0
        mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
        groups.setdefault((decay, mesh), []).append(parameter)
    optimizer = torch.optim.AdamW(
        [{"params": found, "weight_decay": decay} for (decay, _), found in groups.items()],
        lr=config.lr,
        betas=(config.beta1, config.beta2),
        fused=True,
    )
    for _, parameter in named:
        optimizer.state[parameter] = {
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
            "exp_avg": torch.zeros_like(parameter, requires_grad=False),
            "exp_avg_sq": torch.zeros_like(parameter, requires_grad=False),
        }
    return optimizer


def tensors_of(
    model: nn.Module, optimizer: torch.optim.Optimizer, mesh: DeviceMesh | None = None
) -> dict[str, Tensor]:
    """The tensors of a checkpoint by name: model.<parameter>, optimizer.<parameter>.<moment>.

    `mesh` are the ranks that hold this model, where these are not all: plain tensors are then
    given as replicas on it, with the same memory.
    """
    found: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        found[f"model.{name}"] = parameter
        for moment, value in optimizer.state[parameter].items():
            found[f"optimizer.{name}.{moment}"] = value
    if mesh is None:
        return found
    everywhere = [Replicate()] * mesh.ndim
    return {
        name: tensor
        if isinstance(tensor, DTensor)
        else DTensor.from_local(tensor, mesh, everywhere, run_check=False)
        for name, tensor in found.items()
    }


def seed_everything(seed: int, rank: int) -> None:
    """Give each rank random numbers of its own, all from one seed."""
    mixed = (seed * 1_000_003 + rank) % 2**63
    random.seed(mixed)
    np.random.seed(mixed % 2**32)  # noqa: NPY002 -- libraries draw from the old generator
    torch.manual_seed(mixed)


def capture_rng(device: torch.device) -> RngState:
    """The generators' states now."""
    version, internal, gauss = random.getstate()
    numpy: Any = np.random.get_state(legacy=True)  # noqa: NPY002
    _, keys, pos, has_gauss, cached = numpy
    python = np.array(internal, dtype="<u4").tobytes().hex()
    cuda = None
    if device.type == "cuda":
        cuda = torch.cuda.get_rng_state(device).numpy().tobytes().hex()
    return RngState(
        torch_cpu=torch.get_rng_state().numpy().tobytes().hex(),
        torch_cuda=cuda,
        numpy=f"{np.asarray(keys, dtype='<u4').tobytes().hex()}:{pos}:{has_gauss}:{cached.hex()}",
        python=f"{version}:{python}:{'' if gauss is None else gauss.hex()}",
    )


def restore_rng(state: RngState, device: torch.device) -> None:
    """Put the generators back to where `capture_rng` saw them."""
    version, internal, gauss = state.python.split(":")
    words = tuple(int(word) for word in np.frombuffer(bytes.fromhex(internal), dtype="<u4"))
    random.setstate((int(version), words, float.fromhex(gauss) if gauss else None))
    keys, pos, has_gauss, cached = state.numpy.split(":")
    np.random.set_state(  # noqa: NPY002
        (
            "MT19937",
            np.frombuffer(bytes.fromhex(keys), dtype="<u4"),
            int(pos),
            int(has_gauss),
            float.fromhex(cached),
        )
    )
    torch.set_rng_state(_bytes(state.torch_cpu))
    if device.type == "cuda" and state.torch_cuda is not None:
        torch.cuda.set_rng_state(_bytes(state.torch_cuda), device)


def _bytes(text: str) -> Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)


def code_ref() -> str | None:
    """The commit that the job was submitted from, when the agent knows it."""
    return os.environ.get("GANGLINE_CODE_REF") or None
