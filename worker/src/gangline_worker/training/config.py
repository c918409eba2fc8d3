"""The trainer's settings: defaults, then a file, then the job's hyperparameters, then --set."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from gangline_schemas.base import field_errors
from gangline_schemas.parallel import Parallel
from gangline_worker.data.opening import DEFAULT_CACHE_GB


class ConfigError(ValueError):
    """A setting is wrong; the message names it and the way out."""


class TrainConfig(BaseModel):
    """Everything that decides what a run computes. The defaults train in a minute on two cores."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    # model
    dim: int = Field(default=128, ge=8, description="Width of the residual stream.")
    layers: int = Field(default=4, ge=1)
    heads: int = Field(default=4, ge=1)
    seq_len: int = Field(default=128, ge=2, description="Bytes that a sample predicts.")
    experts: int = Field(default=0, ge=0, description="Feed-forward layers that tokens choose of.")
    experts_per_token: int = Field(default=2, ge=1)
    # data
    data: str = Field(
        default="stdlib",
        description="stdlib, a file, a folder, or what `gangline data prepare` made (or its URL).",
    )
    data_suffix: str = ".py"
    data_max_bytes: int = Field(default=12_000_000, ge=1)
    data_cache: str = Field(
        default="", description="Folder for what a URL has; else GANGLINE_DATA_CACHE, ~/.cache."
    )
    data_cache_gb: float = Field(default=DEFAULT_CACHE_GB, gt=0)
    data_shuffle_gb: float = Field(
        default=0.0, ge=0, description="Shuffled among so much at a time; less than data_cache_gb."
    )
    data_max_damaged_blocks: int = Field(
        default=8, ge=0, description="Of one rank, left out; with more the run ends with code 66."
    )
    data_ahead: int = Field(default=2, ge=1, description="Batches that are read ahead.")
    batch_size: int = Field(default=16, ge=1, description="Samples a step, over all ranks.")
    # optimizer
    steps: int = Field(default=200, ge=1)
    lr: float = Field(default=4e-3, gt=0)
    min_lr_ratio: float = Field(default=0.1, ge=0, le=1, description="Of lr, at the last step.")
    warmup_steps: int = Field(default=20, ge=0)
    weight_decay: float = Field(default=0.1, ge=0)
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.95, ge=0, lt=1)
    clip_norm: float = Field(default=1.0, gt=0)
    seed: int = Field(default=17, ge=0, lt=2**63)
    # how it is computed
    strategy: Literal["fsdp", "ddp"] = Field(
        default="fsdp", description="Of all ranks, where parallel is not given."
    )
    parallel: Parallel | None = None
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto", description="Of the matrix work; auto is bfloat16 on GPUs, else float32."
    )
    accumulation: int = Field(default=1, ge=1, description="Backward passes a step; micro-batches.")
    recompute: bool = Field(default=False, description="Activation checkpointing of each layer.")
    collective_timeout_s: float = Field(default=300.0, gt=0)
    # what is kept
    checkpoint_every_steps: int = Field(default=0, ge=0, description="0: by time alone.")
    eval_every_steps: int = Field(
        default=0, ge=0, description="Report eval_loss so often, and at the end; 0: never."
    )
    checkpoint_interval_s: float = Field(default=600.0, gt=0)
    log_every_steps: int = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _head_width_is_even(self) -> Self:
        if self.dim % (2 * self.heads):
            raise ValueError(
                f"dim ({self.dim}) must divide by 2 * heads ({2 * self.heads}): "
                "rotary embedding turns pairs"
            )
        return self

    @model_validator(mode="after")
    def _tokens_find_their_experts(self) -> Self:
        if self.experts and self.experts_per_token > self.experts:
            raise ValueError(
                f"experts_per_token ({self.experts_per_token}) is above experts ({self.experts})"
            )
        return self

    def data_order(self) -> dict[str, int | float]:
        """The settings by which the samples of the same data have an order."""
        return {
            "seq_len": self.seq_len, "seed": self.seed, "data_shuffle_gb": self.data_shuffle_gb
        }  # fmt: skip

    def digest(self) -> str:
        """sha256 of the settings, in hex."""
        return hashlib.sha256(
            json.dumps(self.model_dump(mode="json"), sort_keys=True).encode()
        ).hexdigest()


def read_settings(
    file: Path | None, hyperparameters: Mapping[str, object], overrides: Sequence[str]
) -> TrainConfig:
    """Join the sources; the later wins.

    Raises:
        ConfigError: a source cannot be read, or a setting is unknown or out of range.
    """
    settings: dict[str, object] = {}
    if file is not None:
        try:
            loaded = yaml.safe_load(file.read_text()) or {}
        except (OSError, yaml.YAMLError) as error:
            raise ConfigError(f"--config {file}: {error}") from error
        if not isinstance(loaded, dict):
            raise ConfigError(f"--config {file}: must be a mapping of settings")
        settings.update(loaded)
    settings.update(hyperparameters)
    for override in overrides:
        name, given, value = override.partition("=")
        if not given:
            raise ConfigError(f"--set {override}: write it as name=value")
        try:
            settings[name] = yaml.safe_load(value)
        except yaml.YAMLError:
            quoted = "'" + value.replace("'", "''") + "'"
            raise ConfigError(
                f"--set {override}: the value is no YAML; if it is text, quote it: {quoted}"
            ) from None
    try:
        return TrainConfig.model_validate(settings)
    except ValidationError as error:
        found = field_errors(error, model=TrainConfig)
        wrong = "; ".join(f"{e.field}: {e.message}" for e in found)
        raise ConfigError(f"bad training settings: {wrong}") from error
