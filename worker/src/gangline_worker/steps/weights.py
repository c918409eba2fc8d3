"""A model of the platform's trainer as a folder: safetensors, and its settings."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file

from gangline_worker.reporting import hyperparameters
from gangline_worker.steps.folders import StepError, read_json, write_json
from gangline_worker.training.config import ConfigError, TrainConfig, read_settings
from gangline_worker.training.model import Transformer

CONFIG_FILE = "config.json"


def settings() -> TrainConfig:
    """The trainer's settings, as the job's hyperparameters say. Raises StepError."""
    try:
        return read_settings(None, hyperparameters(), [])
    except ConfigError as error:
        raise StepError(str(error)) from None


def save_settings(folder: Path, config: TrainConfig) -> None:
    """Keep the settings beside the weights."""
    write_json(folder / CONFIG_FILE, config.model_dump(mode="json", exclude_defaults=True))


def load_model(folder: Path, device: torch.device) -> Transformer:
    """The model of a folder that `export` left, for inference. Raises StepError."""
    config = TrainConfig.model_validate(read_json(folder / CONFIG_FILE))
    model = empty_model(config, device)
    tensors: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(file, device=str(device))
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    if missing or unexpected:
        odd = ", ".join([*missing, *unexpected][:3])
        raise StepError(f"{folder.name}: the weights are of another model: {odd}")
    return model


def empty_model(config: TrainConfig, device: torch.device) -> Transformer:
    """A model without its weights, for inference."""
    with torch.device("meta"):
        model = Transformer(config)
    model.to_empty(device=device)
    model.reset_buffers()
    return model.eval().requires_grad_(requires_grad=False)


def device_of_rank() -> torch.device:
    """The GPU of this rank, else the CPU."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
