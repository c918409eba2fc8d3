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

from gangline_schemas.artifacts import JobArtifacts
from gangline_schemas.base import Identifier, Model
from gangline_schemas.checkpoint_policy import CheckpointPolicy
from gangline_schemas.environment import ENV_NAME, EnvValue, refuse_unsafe_env
from gangline_schemas.failure_policy import RestartPolicy, TrainingPolicy
from gangline_schemas.limits import (
    INT53_MAX,
    INT64_MAX,
    EnvName,
    JsonObject,
    Label,
    MetricName,
    Name,
    ShortText,
)
from gangline_schemas.parallel import Parallel
from gangline_schemas.resources import Resources
from gangline_schemas.secrets import holds_secret

HYPERPARAMETERS_LIMIT_BYTES = 64 * 1024
COMMAND_LIMIT_BYTES = 64 * 1024
DIFF_LIMIT_CHARS = 256 * 1024
LEAST_HOURS = 1e-4
"""A third of a second: shorter times say nothing of a run."""
NAMED_PRIORITIES = {"high": 25, "normal": 50, "low": 75}
_LEVEL_NAME = re.compile(r"^[a-z][a-z0-9_-]{0,31}$")
RESUME_PROBLEM = "resume_from: "
"""So begins the reason of a job that cannot begin from the checkpoint of another run."""


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


class Notification(Model):
    """A webhook, and the states that it is called for."""

    on: tuple[JobState, ...] = Field(min_length=1, max_length=16)
    webhook: Identifier


class TrialRef(Model):
    """The trial that a job runs, and the metrics that its study wants reported."""

    study_id: Identifier
    number: int = Field(ge=0, le=INT53_MAX)
    metrics: tuple[MetricName, ...] = Field(
        min_length=1,
        max_length=16,
        description="Objectives and constraints: rank 0 reports them where one was logged.",
    )


class MlflowOptions(Model):
    """How a job's program meets MLflow."""

    run_id: bool = Field(
        default=False,
        description="Set MLFLOW_RUN_ID: the first run that a program starts is the job's own.",
    )


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _priority(value: Any) -> Any:
    return NAMED_PRIORITIES.get(value, value) if isinstance(value, str) else value


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
    image: ShortText | None = Field(
        default=None, description="[REGISTRY/]NAME[:TAG][@sha256:DIGEST], in which ranks run."
    )
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
    env: dict[EnvName, EnvValue] = Field(default_factory=dict, max_length=10_000)
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
    mlflow: MlflowOptions | None = None
    trial: TrialRef | None = Field(
        default=None, description="Set by the studies service for the jobs of its trials."
    )
    artifacts: JobArtifacts | None = Field(
        default=None, description="Folders that ranks find below GANGLINE_IN and leave in _OUT."
    )

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
        if not all(ENV_NAME.match(name) and not holds_secret(name) for name in names):
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

    @model_validator(mode="after")
    def _fits_a_job_without_gpus(self) -> Self:
        if self.resources.gpus == 0:
            if self.parallel is not None:
                raise ValueError("parallel is for jobs with GPUs, and resources.gpus is 0")
            if self.topology.mode == "required":
                raise ValueError(
                    "topology with mode required is for jobs with GPUs, and resources.gpus is 0; "
                    "choose nodes with node_labels"
                )
        return self

    @property
    def gpus_per_worker(self) -> int:
        """GPUs that lie together on one node: those of a worker, else of a tensor group."""
        tensor = self.parallel.tensor if self.parallel is not None else 1
        return self.resources.gpus_per_worker or tensor

    @property
    def sizes(self) -> Sequence[int]:
        """The numbers of ranks that the gang may have, rising: one, unless it is elastic."""
        return self.resources.sizes(self.gpus_per_worker)

    @property
    def parameters(self) -> dict[str, str]:
        """Hyperparameters as JSON texts, strings as they are; the seed is one of them."""
        found = {
            name: value if isinstance(value, str) else json.dumps(value, sort_keys=True)
            for name, value in self.hyperparameters.items()
        }
        if self.seed is not None:
            found.setdefault("seed", str(self.seed))
        return dict(sorted(found.items()))

    def without_diff(self) -> Self:
        """The spec with `code_diff_digest` in place of `code_diff`: what events carry onward."""
        if self.code_diff is None:
            return self
        return self.model_copy(
            update={"code_diff": None, "code_diff_digest": _sha256(self.code_diff)}
        )

    def without_trial(self) -> Self:
        """The spec as a user may submit it: only studies make the jobs of trials."""
        return self if self.trial is None else self.model_copy(update={"trial": None})

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
        given = bool(self.command) + (self.run is not None)
        if given > 1 or (given == 0 and self.image is None):
            raise ValueError(
                "give exactly one of 'command' (a list) and 'run' (a shell line); only an image "
                "may have a command of its own"
            )
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
