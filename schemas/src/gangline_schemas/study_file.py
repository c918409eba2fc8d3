"""The study spec: what a user searches for (the fields of docs/reference/study-file.md)."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, StringConstraints, field_validator, model_validator

from gangline_schemas.base import Identifier, Model, Timestamp
from gangline_schemas.limits import INT53_MAX, INT64_MAX, JsonObject, MetricName, MetricValue
from gangline_schemas.study_job import job_problem
from gangline_schemas.study_space import (
    MAX_PARAMETERS,
    Parameter,
    ParameterName,
    Parameters,
    space_problem,
)

MAX_TRIALS = 10_000
MAX_PARALLEL = 1000
STUDY_ID_CHARS = 48
"""So that `<study>-t<number>-<part>` is the id of a job."""
STUDY_ID = rf"^[a-z0-9]([a-z0-9-]{{0,{STUDY_ID_CHARS - 2}}}[a-z0-9])?$"
StudyId = Annotated[str, StringConstraints(pattern=STUDY_ID)]
ResourceSteps = Annotated[int, Field(ge=1, le=INT53_MAX)]


class Objective(Model):
    """A metric that the trials report, and which way it is better."""

    metric: MetricName
    direction: Literal["minimize", "maximize"] = "minimize"
    take: Literal["last", "best"] = Field(
        default="last", description="Which of a trial's reports is its result."
    )


class Constraint(Model):
    """A metric that must not be above `max` or below `min`; trials that break it are not best."""

    metric: MetricName
    max: MetricValue | None = None
    min: MetricValue | None = None

    @model_validator(mode="after")
    def _has_one_bound(self) -> Self:
        if (self.max is None) == (self.min is None):
            raise ValueError("give exactly one of max and min")
        return self

    def violation(self, value: float | None) -> float:
        """How far the value is on the wrong side: above 0 if it breaks the constraint.

        1 for None: the metric was not reported, or is not finite.
        """
        if value is None:
            return 1.0
        return value - self.max if self.max is not None else (self.min or 0.0) - value


class NoStopping(Model):
    """Each trial runs to its end."""

    kind: Literal["none"] = "none"


class _Rungs(Model):
    min_steps: ResourceSteps = Field(description="Of the first rung.")
    max_steps: ResourceSteps | None = Field(default=None, description="No rung lies here or above.")
    factor: int = Field(
        default=3, ge=2, le=16, description="The best 1/factor of a rung reach the next one."
    )

    @model_validator(mode="after")
    def _max_is_above(self) -> Self:
        if self.max_steps is not None and self.max_steps <= self.min_steps:
            raise ValueError(f"max_steps must be above min_steps ({self.min_steps})")
        return self


class Asha(_Rungs):
    """Asynchronous successive halving."""

    kind: Literal["asha"]
    mode: Literal["stop", "promote"] = Field(
        default="stop",
        description="A trial that is not among the best of a rung is stopped for good, or pauses "
        "and continues once it is among them.",
    )


class Hyperband(_Rungs):
    """Successive halving in brackets, which begin at different rungs."""

    kind: Literal["hyperband"]
    max_steps: ResourceSteps


class Median(Model):
    """Stops a trial whose best value is worse than the median of the others at that step."""

    kind: Literal["median"]
    startup_trials: int = Field(default=5, ge=1, le=MAX_TRIALS)
    warmup_steps: int = Field(default=0, ge=0, le=INT53_MAX)


class Pbt(Model):
    """Population-based training: the worst members continue from the best with changed values."""

    kind: Literal["pbt"]
    interval_steps: ResourceSteps = Field(description="Members are compared each so many steps.")
    quantile: float = Field(default=0.25, gt=0, le=0.5)


Stopping = Annotated[NoStopping | Asha | Hyperband | Median | Pbt, Field(discriminator="kind")]


class StudyLimits(Model):
    """When no further trial starts."""

    trials: int = Field(default=100, ge=1, le=MAX_TRIALS)
    parallel: int = Field(default=4, ge=1, le=MAX_PARALLEL, description="Jobs at the same time.")
    ahead: int = Field(
        default=1, ge=1, le=MAX_PARALLEL, description="Trials that wait for GPUs, of `parallel`."
    )
    gpu_hours: float | None = Field(default=None, ge=1e-4, le=1e9)
    failed: int = Field(
        default=10, ge=0, le=MAX_TRIALS, description="The study ends if more trials fail."
    )
    deadline: Timestamp | None = None


def _objectives(value: Any) -> Any:
    return (value,) if isinstance(value, dict | Objective) else value


def _stopping(value: Any) -> Any:
    return {"kind": value} if isinstance(value, str) else value


class StudySpec(Model):
    """A search for the best parameters of a job."""

    version: Literal[1] = 1
    name: Identifier
    team: Identifier
    project: Identifier | None = None
    objective: Annotated[tuple[Objective, ...], BeforeValidator(_objectives)] = Field(
        min_length=1, max_length=4, description="One, or a list: then the Pareto front is sought."
    )
    constraints: tuple[Constraint, ...] = Field(default=(), max_length=8)
    space: dict[ParameterName, Parameter] = Field(min_length=1, max_length=MAX_PARAMETERS)
    sampler: Literal["auto", "tpe", "random", "grid", "cmaes"] = "auto"
    seed: int | None = Field(default=None, ge=0, le=INT64_MAX)
    start: tuple[Parameters, ...] = Field(
        default=(), max_length=1000, description="Points that are tried first; may be in part."
    )
    stopping: Annotated[Stopping, BeforeValidator(_stopping)] = NoStopping()
    limits: StudyLimits = StudyLimits()
    job: JsonObject = Field(description="The fields of a job file; texts may hold ${{ NAME }}.")

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics that trials report: objectives, then constraints."""
        objectives = [each.metric for each in self.objective]
        return tuple(dict.fromkeys([*objectives, *(each.metric for each in self.constraints)]))

    @field_validator("space")
    @classmethod
    def _space_is_sound(cls, space: dict[str, Parameter]) -> dict[str, Parameter]:
        problem = space_problem(space)
        if problem is not None:
            raise ValueError(problem)
        return space

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        problem = (
            self._objective_problem()
            or self._start_problem()
            or self._sampler_problem()
            or self._stopping_problem()
            or job_problem(self)
        )
        if problem is not None:
            raise ValueError(problem)
        return self

    def _objective_problem(self) -> str | None:
        names = [each.metric for each in self.objective]
        if len(set(names)) < len(names):
            return "objective: names a metric twice"
        named = [each.metric for each in self.constraints]
        if len(set(named)) < len(named):
            return "constraints: name a metric twice"
        return None

    def _start_problem(self) -> str | None:
        for place, point in enumerate(self.start):
            for name, value in point.items():
                parameter = self.space.get(name)
                if parameter is None:
                    return f"start.{place}.{name}: is no parameter of the space"
                if not parameter.holds(value):
                    return f"start.{place}.{name}: lies outside of space.{name}"
        return None

    def _sampler_problem(self) -> str | None:
        if self.sampler == "cmaes" and len(self.objective) > 1:
            return "sampler: cmaes has one objective; give tpe"
        if self.sampler != "auto" and self.stopping.kind == "pbt":
            return "sampler: pbt begins with random points; leave it out"
        if self.sampler == "grid":
            for name, parameter in self.space.items():
                if parameter.when:
                    return f"space.{name}.when: grid takes no conditions; give tpe or random"
                if math.isinf(parameter.points):
                    return f"space.{name}: grid needs a step, or a choice of values"
        return None

    def _stopping_problem(self) -> str | None:
        if self.stopping.kind != "none" and len(self.objective) > 1:
            return f"stopping: {self.stopping.kind} needs a single objective; give none"
        if self.stopping.kind == "pbt" and self.limits.parallel < 4:
            return "limits.parallel: is the population of pbt, at least 4"
        return None
