"""The job spec: what a user submits (the fields of docs/reference/job-file.md)."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AliasChoices,
    BeforeValidator,
    Field,
    StringConstraints,
    ValidationInfo,
    field_validator,
    model_validator,
)

from gangline_schemas.base import Identifier, Model
from gangline_schemas.limits import (
    INT53_MAX,
    INT64_MAX,
    EnvName,
    Gpus,
    JsonObject,
    Label,
    MetricName,
    Name,
    ShortText,
)
from gangline_schemas.parallel import Parallel
from gangline_schemas.resources import Resources
from gangline_schemas.secrets import holds_secret, is_secret_name

ENV_LIMIT_BYTES = 64 * 1024
HYPERPARAMETERS_LIMIT_BYTES = 64 * 1024
COMMAND_LIMIT_BYTES = 64 * 1024
DIFF_LIMIT_CHARS = 256 * 1024
LEAST_HOURS = 1e-4
"""A third of a second: shorter times say nothing of a run."""
NAMED_PRIORITIES = {"high": 25, "normal": 50, "low": 75}
RESERVED_ENV = frozenset(
    [
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
        "TORCHELASTIC_RESTART_COUNT",
        "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_USE_AGENT_STORE",
        "CUDA_VISIBLE_DEVICES",
        "LD_PRELOAD",
        "LD_LIBRARY_PATH",
    ]
)
_PATH_PART = re.compile(r"^(?!\.{1,2}$)[A-Za-z0-9._-]{1,200}$")
_LEVEL_NAME = re.compile(r"^[a-z][a-z0-9_-]{0,31}$")
_ENV_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")

_EnvValue = Annotated[str, Field(json_schema_extra={"maxLength": ENV_LIMIT_BYTES})]
"""Of all together so much is taken, and the error says by how much they are too large."""


class JobState(StrEnum):
    """The states of a job. The last three are terminal: a job ends in exactly one of them."""

    PENDING = "pending"
    SCHEDULED = "scheduled"
    INITIALIZING = "initializing"
    RUNNING = "running"
    CHECKPOINTING = "checkpointing"
    PREEMPTED = "preempted"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def terminal(self) -> bool:
        """Whether the job has ended for ever."""
        return self in {JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED}


WaitCode = Literal["capacity", "quota", "order", "shape", "topology", "gpu_type", "reservation"]
"""The dominant reason why a pending job does not start."""


class RestartCause(StrEnum):
    """Classes of failure after which a gang may start again; user errors are not among them."""

    NODE = "node"
    PREEMPTION = "preemption"
    HANG = "hang"
    INFRASTRUCTURE = "infrastructure"


class Topology(Model):
    """How close the gang must be placed."""

    level: str = Field(
        default="rack",
        max_length=32,
        description="node, nvlink, rack, block, or another level that the cluster is set up with.",
    )
    mode: Literal["required", "preferred"] = "preferred"

    @field_validator("level")
    @classmethod
    def _level_is_a_name(cls, value: str) -> str:
        if not _LEVEL_NAME.match(value):
            raise ValueError("must be a level of the cluster: node, nvlink, rack, block, ...")
        return value


class BestCheckpoint(Model):
    """Keep the checkpoint that is best by a reported metric."""

    metric: MetricName
    mode: Literal["min", "max"] = "min"


class Retention(Model):
    """Which committed checkpoints are kept; the newest healthy one always is."""

    latest: int = Field(default=3, ge=1, le=1000)
    best: BestCheckpoint | None = None
    every: int | None = Field(
        default=None,
        ge=1,
        le=INT53_MAX,
        description="Also the first one of each so many steps, for good.",
    )


class Incremental(Model):
    """A save writes only the chunks that changed since an earlier one of its attempt."""

    full_every: int = Field(
        default=10, ge=2, le=1000, description="Each so many saves one is written whole."
    )


class CheckpointPolicy(Model):
    """How often checkpoints are saved, which are kept, and where a new attempt starts."""

    path: str | None = Field(
        default=None, max_length=512, description="Folder below the team's prefix in the store."
    )
    interval_minutes: float = Field(default=10.0, ge=1e-4, le=24 * 60)
    adapt_interval: bool = Field(
        default=False, description="Save as often as is advised from costs and failures."
    )
    incremental: Incremental | None = Field(
        default=None, description="Unchanged bytes are not written again; without: whole saves."
    )
    keep: Retention = Retention()
    promote: Literal["off", "final"] | Annotated[int, Field(ge=1, le=INT53_MAX)] = Field(
        default="off",
        description="Which a run of its own validates: the last, or each N-th and the last.",
    )
    resume: str = Field(default="auto", max_length=16, description="auto, never or a step.")

    @property
    def full_every(self) -> int:
        """Each so many saves one is written whole."""
        return 1 if self.incremental is None else self.incremental.full_every

    @field_validator("path")
    @classmethod
    def _path_stays_below(cls, value: str | None) -> str | None:
        if value is None:
            return None
        parts = re.sub(r"^s3://", "", value).split("/")
        if not all(_PATH_PART.match(part) for part in parts):
            raise ValueError(
                "must be a relative path of letters, digits, '.', '_' and '-' without '..'; "
                "it lies below the team's prefix"
            )
        return value

    @field_validator("resume", mode="before")
    @classmethod
    def _step_is_a_number(cls, value: object) -> object:
        return str(value) if type(value) is int else value

    @field_validator("resume")
    @classmethod
    def _resume_is_known(cls, value: str) -> str:
        if value in {"auto", "never"} or re.fullmatch(r"[0-9]{1,16}", value):
            return value
        raise ValueError("must be auto, never or the step of a checkpoint of this job")


class RestartPolicy(Model):
    """How many times, and after what, a gang is started again."""

    max: int = Field(default=3, ge=0, le=1000)
    on: tuple[RestartCause, ...] = Field(default=tuple(RestartCause), max_length=16)


class OnNan(Model):
    """The reaction to a step whose loss or gradient is not finite."""

    skip: int = Field(
        default=3,
        ge=0,
        le=1_000_000,
        description="Such steps in a row whose update is left out; one more fails the attempt.",
    )


class OnSpike(Model):
    """When a loss is out of line with those before it, and what follows."""

    window: int = Field(default=128, ge=16, le=4096, description="Losses that it is compared to.")
    deviations: float = Field(
        default=10.0,
        ge=0.01,
        le=1e9,
        description="Above their median, in median absolute deviations.",
    )
    steps: int = Field(default=10, ge=1, le=1000, description="In a row that are so high.")
    then: Literal["flag", "restart"] = Field(
        default="flag", description="restart: from the last checkpoint before the spike."
    )


class LeaveOut(Model):
    """The samples that a run leaves out, once such a step has sent it back to a checkpoint."""

    before: int = Field(
        default=0,
        ge=0,
        le=100_000,
        description="Steps before the first such step whose samples are left out too.",
    )
    samples_max: int = Field(
        default=1_000_000,
        ge=0,
        le=10**12,
        description="Of the job in all; more samples stay in. 0: nothing is left out.",
    )


class TrainingPolicy(Model):
    """The reactions when training goes wrong while every rank is well."""

    on_nan: OnNan = OnNan()
    on_spike: OnSpike = OnSpike()
    leave_out: LeaveOut = LeaveOut()


class Notification(Model):
    """A webhook, and the states that it is called for."""

    on: tuple[JobState, ...] = Field(min_length=1, max_length=16)
    webhook: Identifier


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _priority(value: Any) -> Any:
    return NAMED_PRIORITIES.get(value, value) if isinstance(value, str) else value


def refuse_unsafe_env(env: dict[str, str]) -> dict[str, str]:
    """The variables, if a job or an operator may give them to ranks.

    Raises ValueError for a bad name, one that Gangline sets, one that looks like a secret, and for
    more than `ENV_LIMIT_BYTES`.
    """
    for name in env:
        if not _ENV_NAME.match(name):
            raise ValueError("names must be letters, digits and '_', not starting with a digit")
        if name.upper() in RESERVED_ENV or name.upper().startswith("GANGLINE_"):
            raise ValueError(f"{name} is set by Gangline and cannot be given here")
        if is_secret_name(name):
            raise ValueError(f"{name} looks like a secret; list its name under 'secrets'")
    size = sum(len(name.encode()) + len(value.encode()) for name, value in env.items())
    if size > ENV_LIMIT_BYTES:
        raise ValueError(
            f"holds {size:,} bytes; at most {ENV_LIMIT_BYTES:,} (put data into the workdir)"
        )
    return env


def _misfit(parallel: Parallel, resources: Resources) -> str | None:
    """Why the model cannot be spread so over the gang at one of its sizes, and the way out."""
    each, tensor = resources.gpus_per_worker, parallel.tensor
    if each is not None and each % tensor:
        return (
            f"tensor ({tensor}) must divide resources.gpus_per_worker ({each}), as the GPUs of a "
            f"tensor group lie on one node; give gpus_per_worker: {tensor}, or leave it out"
        )
    broken = None
    if resources.min_gpus is not None:
        broken = resources.broken_worker(tensor, f"tensor ({tensor})")
    return broken or parallel.misfit(resources.sizes(each or tensor))


class JobSpec(Model):
    """One training job. Messages name the field; values that look like secrets are refused."""

    version: Literal[1] = 1
    name: Identifier
    team: Identifier
    project: Identifier | None = None
    priority: Annotated[int, BeforeValidator(_priority)] = Field(
        default=50, ge=0, le=100, description="0 (highest) to 100, or low, normal, high."
    )
    preemptible: bool = False
    image: ShortText | None = None
    command: tuple[Annotated[str, StringConstraints(max_length=32_768)], ...] = Field(
        default=(), max_length=1024
    )
    run: str | None = Field(default=None, min_length=1, max_length=32_768)
    workdir: str | None = Field(default=None, max_length=4096, description="Packed by the client.")
    code_bundle: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    code_ref: ShortText | None = None
    code_diff: str | None = Field(default=None, max_length=DIFF_LIMIT_CHARS)
    code_diff_digest: str | None = Field(
        default=None,
        pattern=r"^[0-9a-f]{64}$",
        description="sha256 of code_diff, in hex. Quota fills it in and takes code_diff out.",
    )
    data_snapshot: ShortText | None = None
    purpose: ShortText | None = None
    resources: Resources
    topology: Topology = Topology()
    strategy: Literal["ddp", "fsdp", "deepspeed", "custom"] = "custom"
    parallel: Parallel | None = Field(
        default=None, description="How the platform's trainer spreads the model over the gang."
    )
    hyperparameters: JsonObject = Field(default_factory=dict)
    seed: int | None = Field(default=None, ge=0, le=INT64_MAX)
    env: dict[EnvName, _EnvValue] = Field(default_factory=dict, max_length=10_000)
    secrets: tuple[EnvName, ...] = Field(default=(), max_length=64)
    checkpoint: CheckpointPolicy = Field(
        default=CheckpointPolicy(),
        validation_alias=AliasChoices("checkpoint", "checkpointPolicy", "checkpoint_policy"),
    )
    resume_from: Identifier | None = Field(
        default=None, description="Start from the newest checkpoint of this earlier run."
    )
    validates: bool = Field(
        default=False,
        description="Only load the checkpoint that resume_from and checkpoint.resume name, and "
        "compare its loss: if the run succeeds, that checkpoint is promoted.",
    )
    restart: RestartPolicy = RestartPolicy()
    training: TrainingPolicy | None = Field(
        default=None, description="The reaction to losses that are not finite, or that leap up."
    )
    max_runtime_hours: float | None = Field(default=None, ge=LEAST_HOURS, le=24 * 365)
    expected_runtime_hours: float | None = Field(
        default=None,
        ge=LEAST_HOURS,
        le=24 * 365,
        description="How long you think it runs; helps to plan, and is never a limit.",
    )
    node_labels: dict[Name, Label] = Field(
        default_factory=dict, max_length=16, description="Only nodes with these labels."
    )
    stop_grace_seconds: float = Field(default=120.0, ge=0, le=3600)
    notify: tuple[Notification, ...] = Field(default=(), max_length=16)

    @field_validator("parallel")
    @classmethod
    def _parallel_fits_the_gang(
        cls, parallel: Parallel | None, info: ValidationInfo
    ) -> Parallel | None:
        resources = info.data.get("resources")
        problem = _misfit(parallel, resources) if parallel and resources else None
        if problem is not None:
            raise ValueError(problem)
        return parallel

    @field_validator("env")
    @classmethod
    def _env_is_safe(cls, env: dict[str, str]) -> dict[str, str]:
        return refuse_unsafe_env(env)

    @field_validator("secrets")
    @classmethod
    def _secrets_are_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if not all(_ENV_NAME.match(name) and not holds_secret(name) for name in names):
            raise ValueError("lists the names of secrets (like HF_TOKEN), never their values")
        return names

    @field_validator("hyperparameters")
    @classmethod
    def _hyperparameters_are_small(cls, value: JsonObject) -> JsonObject:
        size = len(repr(value))
        if size > HYPERPARAMETERS_LIMIT_BYTES:
            raise ValueError(f"hold {size:,} characters; at most {HYPERPARAMETERS_LIMIT_BYTES:,}")
        return value

    @field_validator("command")
    @classmethod
    def _command_is_small(cls, command: tuple[str, ...]) -> tuple[str, ...]:
        size = sum(len(part.encode()) for part in command)
        if size > COMMAND_LIMIT_BYTES:
            raise ValueError(
                f"holds {size:,} bytes; at most {COMMAND_LIMIT_BYTES:,} (put data into the workdir)"
            )
        return command

    @property
    def gpus_per_worker(self) -> int:
        """GPUs that lie together on one node: those of a worker, else of a tensor group."""
        tensor = self.parallel.tensor if self.parallel is not None else 1
        return self.resources.gpus_per_worker or tensor

    @property
    def sizes(self) -> Sequence[int]:
        """The numbers of GPUs that the gang may have, rising: one, unless it is elastic."""
        return self.resources.sizes(self.gpus_per_worker)

    def without_diff(self) -> Self:
        """The spec with `code_diff_digest` in place of `code_diff`: what events carry onward."""
        if self.code_diff is None:
            return self
        return self.model_copy(
            update={"code_diff": None, "code_diff_digest": _sha256(self.code_diff)}
        )

    def digest(self) -> str:
        """Equal for equal specs, with or without the diff: sha256 of the canonical JSON, in hex.

        Fields at their default are left out, so that a later version with more fields agrees.
        """
        data = self.without_diff().model_dump(mode="json", exclude_defaults=True)
        return _sha256(json.dumps(data, sort_keys=True, separators=(",", ":")))

    @model_validator(mode="after")
    def _diff_has_its_digest(self) -> Self:
        if None not in {self.code_diff, self.code_diff_digest} and (
            self.without_diff().code_diff_digest != self.code_diff_digest
        ):
            raise ValueError("code_diff_digest is not the sha256 of code_diff; leave it out")
        return self

    @model_validator(mode="after")
    def _validates_one_checkpoint(self) -> Self:
        if self.validates and (self.resume_from is None or not self.checkpoint.resume.isdigit()):
            raise ValueError("validates needs resume_from and checkpoint.resume: a run and a step")
        return self

    @model_validator(mode="after")
    def _one_command_and_no_secrets(self) -> Self:
        if bool(self.command) == (self.run is not None):
            raise ValueError("give exactly one of 'command' (a list) and 'run' (a shell line)")
        if any("\0" in part for part in (*self.command, self.run or "", *self.env.values())):
            raise ValueError("command, run and env must not hold NUL characters")
        texts = {
            "command": " ".join(self.command),
            "run": self.run or "",
            "env": "\n".join(self.env.values()),
            "hyperparameters": repr(self.hyperparameters),
            "code_diff": self.code_diff or "",
        }
        for field, text in texts.items():
            if holds_secret(text):
                raise ValueError(
                    f"{field} holds something that looks like a credential; "
                    "name it under 'secrets' and read it from the environment"
                )
        return self


def _as_type_limits(value: Any) -> Any:
    """`[h100, a100]` and `{h100: 32, a100: null}` as people write them in a file."""
    if isinstance(value, dict):
        return [{"gpu_type": name, "gpu_limit": limit} for name, limit in value.items()]
    if isinstance(value, list | tuple):
        return [{"gpu_type": item} if isinstance(item, str) else item for item in value]
    return value


class GpuTypeLimit(Model):
    """A GPU model that a team may use, and how many of it at once (None: as its other limits)."""

    gpu_type: Annotated[ShortText, StringConstraints(to_lower=True)]
    gpu_limit: Gpus | None = None


Surplus = Literal["keep", "reclaim_by_weight"]
"""The rule for GPUs that a team has above its part.

`keep`: it keeps them until its jobs end. `reclaim_by_weight`: teams below their own part may take
them back.
"""
LEAST_WEIGHT = 1e-6


class TeamLimits(Model):
    """The limits of a team, without its name."""

    gpu_limit: Gpus = Field(description="GPUs that the team may have at once.")
    gpu_guarantee: Gpus = Field(default=0, description="GPUs it is owed; the fair share's base.")
    borrow_limit: Gpus = Field(default=0, description="GPUs above the limit while others idle.")
    parent: Identifier | None = Field(
        default=None, description="The team above it, whose limits hold too; none: a root."
    )
    weight: float = Field(
        default=1.0, ge=0, le=1e6, description="Its part of the surplus; 0: it has no claim to it."
    )
    surplus: Surplus | None = Field(
        default=None, description="The rule for GPUs above its part; none: as its parent's."
    )
    gpu_types: Annotated[tuple[GpuTypeLimit, ...], BeforeValidator(_as_type_limits)] = Field(
        default=(), max_length=64, description="GPU models that it may use; empty: its parent's."
    )
    gpu_hours_per_month: float | None = Field(
        default=None, ge=1e-6, le=1e9, description="Budget of each UTC month; none: no budget."
    )
    job_limit: int = Field(
        default=10_000, ge=1, le=1_000_000, description="Jobs that have not ended, at once."
    )

    @field_validator("gpu_guarantee")
    @classmethod
    def _guarantee_is_within(cls, guarantee: int, info: ValidationInfo) -> int:
        limit = info.data.get("gpu_limit", guarantee)
        if guarantee > limit:
            raise ValueError(f"gpu_guarantee ({guarantee}) is above gpu_limit ({limit})")
        return guarantee

    @field_validator("weight")
    @classmethod
    def _weight_is_none_or_some(cls, weight: float) -> float:
        if 0 < weight < LEAST_WEIGHT:
            raise ValueError(f"{weight} is too small; accepted: 0, or from {LEAST_WEIGHT} up")
        return weight

    @field_validator("gpu_types")
    @classmethod
    def _types_are_named_once(cls, types: tuple[GpuTypeLimit, ...]) -> tuple[GpuTypeLimit, ...]:
        names = [item.gpu_type for item in types]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"names {', '.join(twice)} twice; keep one entry of each model")
        return types


class _Named(Model):
    team: Identifier


class TeamConfig(TeamLimits, _Named):
    """The limits of a team. Its GPUs never pass `gpu_limit + borrow_limit`.

    Teams form a tree by `parent`; a team's GPUs count for each team above it, and a job must fit at
    every level. The rules between teams are checked by `gangline_schemas.teams`.
    """

    # The name is a base of its own: so it stays the first field.

    @property
    def ceiling(self) -> int:
        """The most GPUs the team can ever hold at once."""
        return self.gpu_limit + self.borrow_limit
