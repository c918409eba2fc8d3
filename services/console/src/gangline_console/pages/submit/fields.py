"""The form's fields: which fields of a job file it shows, and how their texts become values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import yaml
from pydantic import BaseModel

from gangline_schemas.job import JobSpec
from gangline_schemas.job_file import write_yaml
from gangline_schemas.yaml_core import load_yaml

Kind = Literal["text", "number", "choice", "switch", "yaml", "lines"]


@dataclass(frozen=True)
class Field:
    """A field of the form. `kind`: `yaml` is a value in YAML, `lines` a text of several lines."""

    name: str
    label: str
    kind: Kind = "text"
    choices: tuple[str, ...] = ()
    unit: str = ""
    hint: str = ""

    def value(self, text: str) -> Any:
        """The value that a text of the form stands for; None: the field is left out.

        A text that is not a value of its kind stays a text: the check of the file says why.
        """
        if not text.strip():
            return None
        if self.kind in {"text", "choice"}:
            return text.strip()
        if self.kind == "lines":
            return text.replace("\r\n", "\n")
        try:
            return load_yaml(text)
        except (yaml.YAMLError, RecursionError):
            return text.strip()

    def text(self, value: Any) -> str:
        """The text of a value, as the form shows it."""
        if value is None:
            return ""
        if self.kind in {"text", "choice", "lines"} and isinstance(value, str):
            return value
        if isinstance(value, dict) and value:
            return "\n".join(f"{_inline(name)}: {_inline(item)}" for name, item in value.items())
        return _inline(value)


def _inline(value: Any) -> str:
    return write_yaml(value, flow=True)


@dataclass(frozen=True)
class Group:
    """Fields under one heading; `open`: shown from the beginning."""

    title: str
    fields: tuple[Field, ...]
    open: bool = True


GROUPS = (
    Group(
        "Job",
        (
            Field("name", "Name"),
            Field("team", "Team"),
            Field("project", "Project"),
            Field("priority", "Priority", "number", hint="0 is first, 50 the default"),
            Field("run", "Shell lines", "lines", hint="or a command below"),
            Field("command", "Command", "yaml", hint="[python, train.py]"),
        ),
    ),
    Group(
        "GPUs",
        (
            Field("resources.gpus", "GPUs", "number", hint="0: a job without GPUs"),
            Field("resources.min_gpus", "At least", "number", unit="GPUs", hint="makes it elastic"),
            Field("resources.gpu_type", "Models", "yaml", hint="[h100, a100]; empty: any"),
            Field("resources.cpus_per_gpu", "CPUs a GPU", "number"),
            Field("resources.memory_per_gpu_gb", "Memory a GPU", "number", unit="GB"),
            Field("topology.level", "Within one", hint="node, rack, block"),
            Field("topology.mode", "Closeness", "choice", ("preferred", "required")),
            Field("strategy", "Strategy", "choice", ("custom", "ddp", "fsdp", "deepspeed")),
        ),
    ),
    Group(
        "Without GPUs",
        (
            Field("resources.cpus", "CPUs of a node", "number"),
            Field("resources.memory_gb", "Memory of a node", "number", unit="GB"),
            Field("resources.nodes", "Nodes", "number", hint="one rank on each"),
        ),
    ),
    Group(
        "Training",
        (
            Field("hyperparameters", "Hyperparameters", "yaml", hint="lr: 3e-4, one a line"),
            Field("seed", "Seed", "number"),
            Field("data_snapshot", "Data snapshot"),
            Field("env", "Environment", "yaml", hint="NAME: value, one a line"),
            Field("secrets", "Secrets", "yaml", hint="[HF_TOKEN]: names alone"),
        ),
    ),
    Group(
        "Time, checkpoints and failures",
        (
            Field("expected_runtime_hours", "Expected run time", "number", unit="h"),
            Field("max_runtime_hours", "At most", "number", unit="h"),
            Field("preemptible", "May be preempted", "switch"),
            Field("checkpoint.interval_minutes", "Checkpoint each", "number", unit="min"),
            Field("checkpoint.resume", "Resume from", hint="auto, never or a step"),
            Field("resume_from", "Begin with the run"),
            Field("restart.max", "Restarts at most", "number"),
            Field("stop_grace_seconds", "Time to save at a stop", "number", unit="s"),
        ),
        open=False,
    ),
)
FIELDS = {field.name: field for group in GROUPS for field in group.fields}


def texts(content: Mapping[str, Any]) -> dict[str, str]:
    """The text of each field of the form, of a file's content."""
    return {name: field.text(_at(content, name)) for name, field in FIELDS.items()}


def descriptions() -> dict[str, str]:
    """Descriptions by dotted name, of all fields that a file may have."""
    return dict(_described(JobSpec, ""))


def _at(content: Mapping[str, Any], name: str) -> Any:
    found: Any = content
    for part in name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _described(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, str]]:
    for name, field in model.model_fields.items():
        yield f"{prefix}{name}", field.description or ""
        inner = _model_in(field.annotation)
        if inner is not None:
            yield from _described(inner, f"{prefix}{name}.")


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    parts = getattr(annotation, "__args__", ())
    return next(filter(None, map(_model_in, parts)), None)
