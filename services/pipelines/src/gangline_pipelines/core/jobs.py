"""The job or study of a step: the file's, with values, inputs and the checkpoint it starts from."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from gangline_pipelines.core.graph import Instance
from gangline_pipelines.core.model import Run, StepState
from gangline_pipelines.core.state import PipelinePlan, graph_of_run, spec_of, step_key
from gangline_schemas.artifacts import JobArtifacts
from gangline_schemas.base import field_errors
from gangline_schemas.events.scheduling import CheckpointRef
from gangline_schemas.job import JobSpec
from gangline_schemas.models import AliasedVersion
from gangline_schemas.pipeline_file import source_of
from gangline_schemas.placeholders import BEST, UnknownPlaceholder, best_named, replaced
from gangline_schemas.study_file import StudySpec


def study_of(plan: PipelinePlan, run: Run, instance: Instance, study: StudySpec) -> StudySpec:
    """The study of a step; its jobs read the step's inputs."""
    inputs = inputs_of(plan, run, instance)
    if not inputs:
        return study
    job = {**study.job, "artifacts": {"inputs": inputs, "outputs": {}}}
    return study.model_copy(update={"job": job})


def job_of(
    plan: PipelinePlan, run: Run, instance: Instance, start: AliasedVersion | None
) -> JobSpec:
    """The job of a step with its values and artifacts. `start`: of the alias that it names.

    Raises UnknownPlaceholder and ValidationError.
    """
    if instance.spec.job is None:
        raise TypeError(f"step {instance.name} has no job")
    job = replaced(instance.spec.job, _values(plan, run, instance))
    if instance.spec.resumed_step is not None:
        maker = plan.state.steps[step_key(run.run_id, instance.spec.resumed_step)].job_id
        job = job.model_copy(update={"resume_from": maker})
    elif start is not None:
        policy = job.checkpoint.model_copy(update={"resume": str(start.checkpoint.step)})
        changed = {"resume_from": start.checkpoint.job_id, "checkpoint": policy}
        job = job.model_copy(update=changed)
    inputs = inputs_of(plan, run, instance)
    if not inputs and not instance.spec.outputs:
        return job
    artifacts = JobArtifacts(inputs=inputs, outputs=instance.spec.outputs)
    return job.model_copy(update={"artifacts": artifacts})


def inputs_of(plan: PipelinePlan, run: Run, instance: Instance) -> dict[str, str]:
    """The digests of the artifacts that it reads, by the names of inputs."""
    found: dict[str, str] = {}
    graph = graph_of_run(plan.state, run)
    for name, reference in instance.spec.inputs.items():
        source = source_of(reference)
        for number, made_by in enumerate(graph.of_step[source.step]):
            step = plan.state.steps[step_key(run.run_id, made_by)]
            if source.optional and step.state is StepState.SKIPPED:
                continue
            many = bool(graph.instances[made_by].spec.each)
            found[f"{name}/{number}" if many else name] = step.outputs[source.output].digest
    return found


def checkpoint_of(start: AliasedVersion | None) -> CheckpointRef | None:
    """The checkpoint of a version, for services that have forgotten its job."""
    one = None if start is None else start.checkpoint
    if one is None or one.commit_key is None:
        return None
    return CheckpointRef.model_validate(one.model_dump())


def params_of(plan: PipelinePlan, run: Run) -> dict[str, Any]:
    """The values of a run's parameters."""
    return {**spec_of(plan.state, run).params, **run.cause.params}


def _values(plan: PipelinePlan, run: Run, instance: Instance) -> dict[str, Any]:
    cause = run.cause
    # The snapshot that started the run, or in which drift was found.
    snapshot = cause.subject.rpartition(":")[2] if cause.kind in {"snapshot", "drift"} else ""
    values = {f"params.{name}": value for name, value in params_of(plan, run).items()}
    values |= {
        "run.id": run.run_id,
        "run.pipeline": run.pipeline,
        "trigger.kind": cause.kind,
        "trigger.subject": cause.subject,
        "trigger.snapshot": snapshot,
    }
    named = () if instance.spec.job is None else best_named(instance.spec.job)
    for need in dict.fromkeys(named):
        best = plan.state.steps[step_key(run.run_id, need)].best
        if best is not None:
            values |= {f"{BEST}{need}.{name}": value for name, value in best.parameters.items()}
    if instance.index is not None:
        values |= {"item": instance.item, "index": instance.index}
        if isinstance(instance.item, dict):
            values |= {f"item.{key}": value for key, value in instance.item.items()}
    return values


def job_problem(error: UnknownPlaceholder | ValidationError) -> str:
    """The field of a step's job that is wrong with its values, and why."""
    if isinstance(error, UnknownPlaceholder):
        return f"job.{error.field}: there is no value {error.name!r}"
    first = field_errors(error, "job", JobSpec)[0]
    return f"{first.field}: {first.message}"
