"""The pipeline file: steps, what flows between them, and what starts a run.

docs/reference/pipeline-file.md describes the fields. The REST API takes the same ones as JSON.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import (
    AliasChoices,
    BeforeValidator,
    Field,
    StringConstraints,
    field_validator,
    model_validator,
)

from gangline_schemas.artifacts import OutputKind, OutputName
from gangline_schemas.base import Identifier, Model
from gangline_schemas.events.faults import FailureCause
from gangline_schemas.job import JobSpec
from gangline_schemas.limits import INT53_MAX, Label, MetricValue
from gangline_schemas.models import ModelName, free_alias
from gangline_schemas.pipeline_when import MAX_WHEN_CHARS, WhenError, clauses
from gangline_schemas.placeholders import best_named
from gangline_schemas.study_file import StudySpec

MAX_STEPS = 1000
MAX_ITEMS = 500
MAX_INSTANCES = 2000
"""Steps of one run, with each item of a fan-out."""
MAX_STUDIES = 100
"""Steps that are studies: each is checked with up to 64 sets of parameters."""
MAX_OUTPUTS = 50_000
"""Of all steps and items: one event may hold the digests of all of them."""
MAX_INPUTS = 50_000
"""Of all steps and items, each with all items of the step that it reads."""
MAX_JOBS_BYTES = 4 << 20
"""Of the jobs of fan-outs as JSON, with all items: one decision may make all of them."""
MAX_TRIGGERS = 20
MAX_RETRIES = 10
MAX_PARAMS = 100
_OWN_NAMES = {"inputs": "in", "outputs": "out"}
_OWN_FIELDS = re.compile(r"^(steps\.[^.]+)\.(inputs|outputs)(?=\.|$)")

_OR_NONE = " or none"
Reference = Annotated[
    str,
    StringConstraints(
        pattern=rf"^[a-z0-9-]{{1,63}}\.[a-z0-9]([a-z0-9_-]{{0,61}}[a-z0-9])?({_OR_NONE})?$"
    ),
]
"""An output of a step: `STEP.OUT`; `STEP.OUT or none` is left out if the step was skipped."""
RESUME_PATTERN = (
    r"^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
    r"|[A-Za-z0-9_][A-Za-z0-9._-]{0,127}@[A-Za-z0-9_-]{1,63})$"
)


def _start(value: Any) -> Any:
    """The name of a step, or of a model and its alias."""
    if isinstance(value, str):
        if not re.fullmatch(RESUME_PATTERN[:-1], value):
            raise ValueError("must be a step, or NAME@ALIAS of a registered model")
        if "@" in value:
            free_alias(value.partition("@")[2])
    return value


Resume = Annotated[str, StringConstraints(pattern=RESUME_PATTERN), BeforeValidator(_start)]
"""A step, or `NAME@ALIAS`: the checkpoint of the version that an alias of the team points to."""
ParamName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,62}$")]
ParamText = Annotated[str, StringConstraints(max_length=1024)]
ParamNumber = Annotated[int, Field(ge=-INT53_MAX, le=INT53_MAX)] | MetricValue
ParamValue = ParamText | ParamNumber | bool
Params = Annotated[dict[ParamName, ParamValue], Field(max_length=MAX_PARAMS)]
Item = ParamValue | Params
"""Of a fan-out: a value, or named values (`${{ item.lr }}`)."""


def _outputs(value: Any) -> Any:
    """A list of names stands for folders."""
    if not isinstance(value, list | tuple):
        return value
    if not all(isinstance(name, str) for name in value):
        raise ValueError("must be a list of names, or names with their kinds")
    return dict.fromkeys(value, "folder")


class Source(NamedTuple):
    """The parts of a `Reference`."""

    step: str
    output: str
    optional: bool


def source_of(reference: str) -> Source:
    """The step and the output that an input names."""
    step, _, output = reference.removesuffix(_OR_NONE).partition(".")
    return Source(step, output, reference.endswith(_OR_NONE))


class StepRetry(Model):
    """How often a failed step is tried again, and after which failures."""

    max: int = Field(default=0, ge=0, le=MAX_RETRIES)
    on: tuple[FailureCause, ...] = Field(
        default=(), max_length=16, description="Causes of failure; empty: all."
    )
    wait_minutes: float = Field(default=0.0, ge=0, le=24 * 60)


class Step(Model):
    """One step: a job or a study, its inputs and outputs."""

    job: JobSpec | None = None
    study: StudySpec | None = Field(default=None, description="In place of a job.")
    inputs: dict[OutputName, Reference] = Field(
        default_factory=dict, max_length=64, validation_alias=AliasChoices("in", "inputs")
    )
    outputs: Annotated[dict[OutputName, OutputKind], BeforeValidator(_outputs)] = Field(
        default_factory=dict, max_length=64, validation_alias=AliasChoices("out", "outputs")
    )
    resume: Resume | None = Field(
        default=None,
        description="Start from the newest checkpoint of this step's job, or from that of the "
        "version which an alias points to: NAME@ALIAS.",
    )
    after: tuple[Identifier, ...] = Field(
        default=(), max_length=MAX_STEPS, description="Steps that must end first."
    )
    when: str | None = Field(default=None, min_length=1, max_length=MAX_WHEN_CHARS)
    each: tuple[Item, ...] = Field(
        default=(), max_length=MAX_ITEMS, description="One job for each item: `${{ item }}`."
    )
    retry: StepRetry = StepRetry()
    cache: bool = Field(default=True, description="false: the step runs each time.")

    @field_validator("when")
    @classmethod
    def _when_is_a_condition(cls, text: str | None) -> str | None:
        if text is not None:
            try:
                clauses(text)
            except WhenError as error:
                raise ValueError(str(error)) from None
        return text

    @model_validator(mode="after")
    def _one_job_or_study(self) -> Self:
        if (self.job is None) == (self.study is None):
            raise ValueError("give exactly one of job and study")
        if self.study is not None and (self.outputs or self.each or self.resume):
            raise ValueError("a study has no out, each and resume: its best trial is its result")
        if self.resume is not None and self.job is not None and self.job.resume_from is not None:
            raise ValueError("give resume or job.resume_from (a run), not both")
        return self

    @field_validator("job")
    @classmethod
    def _artifacts_are_the_steps(cls, job: JobSpec | None) -> JobSpec | None:
        if job is not None and job.artifacts is not None:
            raise ValueError("artifacts: leave it out; the step's in and out say it")
        return job

    @property
    def resumed_step(self) -> str | None:
        """The step from whose checkpoint it starts; None: it starts from none."""
        return None if self.resume is None or "@" in self.resume else self.resume

    @property
    def resumed_alias(self) -> str | None:
        """The `NAME@ALIAS` from whose checkpoint it starts; None: it starts from none."""
        return self.resume if self.resume is not None and "@" in self.resume else None

    @property
    def needs(self) -> tuple[str, ...]:
        """The steps that must end before this one, in the order of the file."""
        named = [source_of(reference).step for reference in self.inputs.values()]
        return tuple(dict.fromkeys([*named, *self._needs_besides_inputs, *self.after]))

    @property
    def optional(self) -> frozenset[str]:
        """The steps that it needs and that may be skipped: only inputs with `or none` name them."""
        sources = [source_of(reference) for reference in self.inputs.values()]
        firm = {one.step for one in sources if not one.optional}
        firm |= {*self._needs_besides_inputs, *self.after}
        return frozenset(one.step for one in sources if one.optional) - firm

    @property
    def _needs_besides_inputs(self) -> list[str]:
        named = [self.resumed_step] if self.resumed_step is not None else []
        named += [*best_named(self.job)] if self.job is not None else []
        if self.when is not None:
            named += [name for clause in clauses(self.when) if (name := clause.step) is not None]
        return named


class Trigger(Model):
    """The start of runs: a new snapshot, a time, or drift. Exactly one is given."""

    snapshot: str | None = Field(
        default=None,
        pattern=r"^[a-z0-9*?][a-z0-9._*?-]{0,62}$",
        description="The corpus of snapshots, with * and ?: `web-*`.",
    )
    schedule: str | None = Field(
        default=None, min_length=9, max_length=256, description="Five fields of cron: `0 3 * * *`."
    )
    drift: ModelName | None = Field(default=None, description="The registered model that drifts.")
    zone: str = Field(default="UTC", max_length=64, description="Of the schedule.")
    catch_up: Literal["last", "all", "none"] = Field(
        default="last", description="Of times that were missed: the last one, all, or none."
    )
    params: Params = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_is_given(self) -> Self:
        given = [one for one in (self.snapshot, self.schedule, self.drift) if one is not None]
        if len(given) != 1:
            raise ValueError("give exactly one of snapshot, schedule and drift")
        return self

    @property
    def kind(self) -> Literal["snapshot", "schedule", "drift"]:
        """The kind of its cause."""
        if self.snapshot is not None:
            return "snapshot"
        return "schedule" if self.schedule is not None else "drift"


class PipelineLimits(Model):
    """Bounds of a pipeline and of each of its runs."""

    runs_per_day: int = Field(default=100, ge=1, le=10_000)
    queued: int = Field(default=10, ge=0, le=1000, description="Runs that wait, with `queue`.")
    jobs: int = Field(default=10_000, ge=1, le=10_000, description="Of one run, retries too.")
    parallel: int = Field(default=100, ge=1, le=1000, description="Jobs of one run at a time.")
    hours: float = Field(default=24 * 7, ge=1e-4, le=24 * 365, description="Of one run.")
    gpu_hours: float | None = Field(default=None, ge=0, le=1e9, description="Of one run.")


class OutputRetention(Model):
    """How long outputs of runs are retained. They go when all that is given lets them go."""

    days: float | None = Field(
        default=None,
        gt=0,
        le=3650,
        description="After the run, or its last hit of the cache.",
    )
    runs: int | None = Field(
        default=None, ge=1, le=10_000, description="The newest runs of the pipeline that ended."
    )

    @model_validator(mode="after")
    def _something_is_given(self) -> Self:
        if self.days is None and self.runs is None:
            raise ValueError("give days, runs or both")
        return self


class PipelineSpec(Model):
    """A pipeline: a name, a team, steps, and what starts a run."""

    version: Literal[1] = 1
    name: Identifier
    team: Identifier
    description: Label = ""
    params: Params = Field(default_factory=dict, description="With the values of a plain run.")
    steps: dict[Identifier, Step] = Field(min_length=1, max_length=MAX_STEPS)
    triggers: dict[Identifier, Trigger] = Field(default_factory=dict, max_length=MAX_TRIGGERS)
    overlap: Literal["skip", "queue", "cancel"] = Field(
        default="queue", description="When a run is due while another one runs."
    )
    siblings: Literal["cancel", "finish"] = Field(
        default="cancel", description="The running steps when one has failed."
    )
    cooldown_minutes: float = Field(default=0.0, ge=0, le=60 * 24 * 30)
    pause_after_failures: int = Field(
        default=5, ge=0, le=1000, description="Triggered runs that fail in a row; 0: never."
    )
    limits: PipelineLimits = PipelineLimits()
    retention: OutputRetention | None = Field(
        default=None, description="Of outputs; without it they stay."
    )

    @model_validator(mode="before")
    @classmethod
    def _jobs_have_a_name_and_the_team(cls, data: Any) -> Any:
        """A step's job needs neither: its name is the step's, its team the pipeline's."""
        if not isinstance(data, dict) or not isinstance(data.get("steps"), dict):
            return data
        given = (step for step in data["steps"].values() if isinstance(step, dict))
        studies = sum(step.get("study") is not None for step in given)
        if studies > MAX_STUDIES:
            raise ValueError(f"steps: {studies:,} are studies; at most {MAX_STUDIES}")
        steps = {name: _with_names(step, name, data) for name, step in data["steps"].items()}
        return {**data, "steps": steps}

    @model_validator(mode="after")
    def _the_team_is_one(self) -> Self:
        for name, step in self.steps.items():
            kind, part = ("job", step.job) if step.job is not None else ("study", step.study)
            if part is not None and part.team != self.team:
                raise ValueError(f"steps.{name}.{kind}.team: must be the pipeline's, {self.team}")
        return self


def _with_names(step: Any, name: Any, pipeline: Mapping[str, Any]) -> Any:
    if not isinstance(step, dict):
        return step
    given = {"name": name, "team": pipeline.get("team")}
    known = {key: one for key, one in given.items() if one is not None}
    named = {
        kind: {**known, **step[kind]}
        for kind in ("job", "study")
        if isinstance(step.get(kind), dict)
    }
    return {**step, **named}


def named_in_file(field: str) -> str:
    """A field's dotted name as the file has it: `steps.train.in.data`."""
    return _OWN_FIELDS.sub(lambda match: f"{match[1]}.{_OWN_NAMES[match[2]]}", field)
