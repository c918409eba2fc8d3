"""Checks of a pipeline as a whole: its graph, its references and its placeholders.

Each problem names the field, as `steps.evaluate.in.model`, and the way out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from graphlib import CycleError, TopologicalSorter
from itertools import chain, islice
from zoneinfo import ZoneInfo

from gangline_schemas.artifacts import MOST_ARTIFACTS
from gangline_schemas.base import NAME_CHARS, FieldError
from gangline_schemas.pipeline_file import (
    MAX_INPUTS,
    MAX_INSTANCES,
    MAX_JOBS_BYTES,
    MAX_OUTPUTS,
    PipelineSpec,
    Step,
    source_of,
)
from gangline_schemas.pipeline_when import clauses
from gangline_schemas.placeholders import BEST, named_in

TRIGGER_VALUES = ("trigger.kind", "trigger.subject", "trigger.snapshot")
BEST_VALUE = "best"
"""Of a study, in conditions: the value of its best trial."""
RUN_VALUES = ("run.id", "run.pipeline")
PROBLEMS_SHOWN, NAMES_COMPARED = 20, 200
"""So many problems are named, and so many names are compared with a wrong one: 0.1 ms each."""


def pipeline_problems(spec: PipelineSpec) -> list[FieldError]:
    """The first problems of a pipeline; [] when all is well. Cost: O(its steps and references)."""
    wrong = chain(
        _graph(spec), _names(spec), _artifacts(spec), _placeholders(spec), _triggers(spec)
    )
    shown = islice(wrong, PROBLEMS_SHOWN)
    return [FieldError(field=field, message=message) for field, message in shown]


def _graph(spec: PipelineSpec) -> Iterator[tuple[str, str]]:
    sound = True
    for problem in _references(spec):
        sound = False
        yield problem
    if sound:
        yield from _cycle(spec)


def _references(spec: PipelineSpec) -> Iterator[tuple[str, str]]:
    for name, step in spec.steps.items():
        place = f"steps.{name}"
        for given, reference in step.inputs.items():
            source = source_of(reference)
            yield from _reference(spec, f"{place}.in.{given}", source.step, source.output)
        if step.resumed_step is not None:
            yield from _resumed(spec, f"{place}.resume", step.resumed_step)
        for other in step.after:
            if other not in spec.steps:
                yield f"{place}.after", f"there is no step {other}{_near(other, spec.steps)}"
        if step.when is not None:
            yield from _condition(spec, place, step)


def _reference(
    spec: PipelineSpec, place: str, owner: str, output: str
) -> Iterator[tuple[str, str]]:
    step = spec.steps.get(owner)
    if step is None:
        yield place, f"there is no step {owner}{_near(owner, spec.steps)}"
    elif step.study is not None and output == BEST_VALUE and place.endswith(".when"):
        return
    elif output not in step.outputs:
        known = ", ".join(step.outputs) or "none"
        yield place, f"step {owner} has no output {output}; its outputs are: {known}"


def _resumed(spec: PipelineSpec, place: str, owner: str) -> Iterator[tuple[str, str]]:
    step = spec.steps.get(owner)
    if step is None:
        yield place, f"there is no step {owner}{_near(owner, spec.steps)}"
    elif step.each:
        yield place, f"step {owner} has several jobs; name one that has no each"


def _condition(spec: PipelineSpec, place: str, step: Step) -> Iterator[tuple[str, str]]:
    for clause in clauses(step.when or ""):
        if clause.step is None:
            if clause.name not in spec.params:
                known = ", ".join(spec.params) or "none"
                yield f"{place}.when", f"there is no parameter {clause.name}; there are: {known}"
            continue
        wrong = [*_reference(spec, f"{place}.when", clause.step, clause.name)]
        yield from wrong
        kind = spec.steps[clause.step].outputs.get(clause.name, "score") if not wrong else ""
        if not wrong and kind != "score":
            way_out = f"declare it as out: {{{clause.name}: score}}"
            yield f"{place}.when", f"{clause.step}.{clause.name} is no score; {way_out}"


def _cycle(spec: PipelineSpec) -> Iterator[tuple[str, str]]:
    graph = {name: step.needs for name, step in spec.steps.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        members = error.args[1]
        shown = " -> ".join(members[:10]) + (" -> ..." if len(members) > 10 else "")
        yield f"steps.{members[0]}", f"the steps wait for each other: {shown}"


def _names(spec: PipelineSpec) -> Iterator[tuple[str, str]]:
    instances = sum(map(_items, spec.steps.values()))
    if instances > MAX_INSTANCES:
        yield "steps", f"are {instances:,} with all items; at most {MAX_INSTANCES:,}"
    for name, step in spec.steps.items():
        yield from _long_items(name, step)
        for number in range(len(step.each)):
            if f"{name}-{number}" in spec.steps:
                yield f"steps.{name}-{number}", f"is also item {number} of {name}; rename it"
        if name == "params":
            yield f"steps.{name}", "is a word of conditions; rename it"


def _long_items(name: str, step: Step) -> Iterator[tuple[str, str]]:
    last = f"{name}-{len(step.each) - 1}"
    if step.each and len(last) > NAME_CHARS:
        yield f"steps.{name}", f"has the item {last}: a name has at most {NAME_CHARS} characters"


def _artifacts(spec: PipelineSpec) -> Iterator[tuple[str, str]]:
    """Too many inputs of a step, or outputs of a run, with all items of fan-outs."""
    read, size = 0, 0
    for name, step in spec.steps.items():
        owners = (source_of(reference).step for reference in step.inputs.values())
        inputs = sum(_items(spec.steps[owner]) for owner in owners if owner in spec.steps)
        if inputs > MOST_ARTIFACTS:
            most = f"at most {MOST_ARTIFACTS:,}"
            yield f"steps.{name}.in", f"are {inputs:,} with all items; {most}"
        read += inputs * _items(step)
        if step.each and step.job is not None:
            size += len(step.job.model_dump_json(exclude_defaults=True)) * _items(step)
    if read > MAX_INPUTS:
        yield "steps", f"have {read:,} inputs with all items; at most {MAX_INPUTS:,}"
    if size > MAX_JOBS_BYTES:
        yield "steps", f"have jobs of {size:,} bytes with all items; at most {MAX_JOBS_BYTES:,}"
    outputs = sum(len(step.outputs) * _items(step) for step in spec.steps.values())
    if outputs > MAX_OUTPUTS:
        yield "steps", f"have {outputs:,} outputs with all items; at most {MAX_OUTPUTS:,}"


def _items(step: Step) -> int:
    return len(step.each) or 1


def _placeholders(spec: PipelineSpec) -> Iterator[tuple[str, str]]:
    known = {*TRIGGER_VALUES, *RUN_VALUES, *(f"params.{name}" for name in spec.params)}
    for name, step in spec.steps.items():
        fields = {f"item.{key}" for item in step.each if isinstance(item, dict) for key in item}
        own = known | ({"item", "index"} | fields if step.each else set())
        for field, given in named_in(step.job) if step.job is not None else ():
            if given.startswith(BEST):
                yield from _best(spec, f"steps.{name}.job.{field}", given)
            elif given not in own:
                yield (
                    f"steps.{name}.job.{field}",
                    f"there is no value {given!r}; known are {', '.join(sorted(own))}",
                )


def _best(spec: PipelineSpec, place: str, given: str) -> Iterator[tuple[str, str]]:
    owner, _, parameter = given.removeprefix(BEST).partition(".")
    step = spec.steps.get(owner)
    if step is None or step.study is None:
        studies = ", ".join(name for name, one in spec.steps.items() if one.study) or "none"
        yield place, f"{given}: there is no step {owner} with a study; there are: {studies}"
    elif parameter not in step.study.space:
        yield place, f"{given}: the study has no {parameter}{_near(parameter, step.study.space)}"


def _triggers(spec: PipelineSpec) -> Iterator[tuple[str, str]]:
    for name, trigger in spec.triggers.items():
        place = f"triggers.{name}"
        if trigger.kind == "schedule" and not _is_zone(trigger.zone):
            yield f"{place}.zone", f"there is no zone {trigger.zone!r}; give one like Europe/Berlin"
        for given in trigger.params:
            if given not in spec.params:
                yield f"{place}.params.{given}", "is no parameter of the pipeline; add it to params"


def _is_zone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (ValueError, OSError, KeyError):  # ZoneInfoNotFoundError is a KeyError
        return False
    return True


def _near(name: str, known: Iterable[str]) -> str:
    names = [*islice(known, NAMES_COMPARED)]
    near = get_close_matches(name, names, 1)
    return f"; did you mean {near[0]}?" if near else f"; there are: {', '.join(names[:10])}"
