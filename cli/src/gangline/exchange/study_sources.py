"""Sweeps of W&B and experiments of Determined as parts of a study. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gangline.exchange.study_draft import (
    Draft,
    ForeignError,
    asha,
    choice,
    first_rung,
    given,
    name_of,
    number_range,
)

_SWEEP = (
    "program", "name", "method", "metric", "parameters", "early_terminate", "command", "run_cap",
)  # fmt: skip
_EXPERIMENT = (
    "name", "description", "hyperparameters", "searcher", "entrypoint", "resources", "environment",
)  # fmt: skip
_SEARCHER = (
    "name", "metric", "smaller_is_better", "max_trials", "max_concurrent_trials", "max_time",
    "max_length", "time_metric", "divisor", "num_rungs", "max_rungs",
)  # fmt: skip
_HALVING = {"adaptive_asha", "async_halving"}


# W&B


def wandb(content: Mapping[str, Any]) -> Draft:
    """A sweep's configuration. Raises ForeignError."""
    draft = Draft(name_of(content.get("name", "sweep")), {})
    goal = content.get("metric")
    if not isinstance(goal, Mapping):
        raise ForeignError("metric is missing: name the metric and its goal")
    draft.fields["objective"] = {"metric": goal["name"], "direction": goal.get("goal", "minimize")}
    space, fixed = {}, {}
    for name, found in _flat(draft, content["parameters"], "parameters"):
        if "value" in found:
            fixed[name] = found["value"]
        else:
            space[name] = _wandb_parameter(draft, name, found)
    draft.fields["space"] = space
    draft.sampler({"bayes": "tpe"}.get(content["method"], content["method"]))
    _wandb_stopping(draft, content.get("early_terminate"))
    draft.fields["limits"] = given(trials=content.get("run_cap"))
    command = _wandb_command(draft, content, [*fixed, *space], fixed)
    draft.fields["job"] = given(
        command=command, resources={"gpus": 1}, hyperparameters=fixed or None
    )
    draft.notes.append("resources: a sweep names none; the job has 1 GPU")
    draft.left_out("", content, _SWEEP)
    return draft


def _flat(
    draft: Draft, content: Mapping[str, Any], place: str, before: str = ""
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The parameters, those of a group as GROUP.NAME."""
    for name, found in content.items():
        if "parameters" in found:
            draft.notes.append(f"{place}.{name}: its parameters are named {before}{name}.NAME")
            yield from _flat(draft, found["parameters"], f"{place}.{name}", f"{before}{name}.")
        else:
            yield before + name, found


def _wandb_parameter(draft: Draft, name: str, found: Mapping[str, Any]) -> dict[str, Any]:
    if "values" in found:
        if "probabilities" in found:
            draft.notes.append(f"parameters.{name}: probabilities are left out")
        return choice(found["values"])
    kind = found.get("distribution", "uniform")
    low, high = found.get("min"), found.get("max")
    if low is None or high is None:
        raise ForeignError(f"parameters.{name}: {kind} has no min and max; give a range")
    if kind in {"log_uniform", "q_log_uniform", "inv_log_uniform"}:
        low, high = math.exp(low), math.exp(high)  # these give exponents
    elif "normal" in kind:
        raise ForeignError(f"parameters.{name}: {kind} has no counterpart; give a range")
    whole = kind == "int_uniform" or (
        "distribution" not in found and isinstance(low, int) and isinstance(high, int)
    )
    log = "log" in kind
    step = found.get("q") if kind.startswith("q_") and not log else None
    return number_range(whole=whole, low=low, high=high, step=step, log=log)


def _wandb_stopping(draft: Draft, found: Mapping[str, Any] | None) -> None:
    if not found:
        return
    factor, last = int(found.get("eta", 3)), found.get("max_iter")
    if "min_iter" in found:
        first = found["min_iter"]
    elif last is not None:
        first = first_rung(last, factor, int(found.get("s", 1)))
    else:
        draft.notes.append("early_terminate is left out: it has neither min_iter nor max_iter")
        return
    stopping = asha(first, last, factor)
    if stopping is None:
        draft.notes.append("early_terminate is left out: it has no room between its iterations")
        return
    draft.fields["stopping"] = stopping
    draft.notes.append("early_terminate counts calls of log, stopping counts steps: check both")


def _wandb_command(
    draft: Draft, content: Mapping[str, Any], names: Sequence[str], fixed: Mapping[str, Any]
) -> list[str]:
    program = str(content.get("program", "train.py"))
    texts = {name: fixed.get(name, f"${{{{ {name} }}}}") for name in names}
    arguments = [f"--{name}={text}" for name, text in texts.items()]
    found: list[str] = []
    default = ["${interpreter}", "${program}", "${args}"]
    for word in content.get("command", default):
        if word == "${interpreter}":
            found.append("python")
        elif word == "${program}":
            found.append(program)
        elif word == "${args}":
            found += arguments
        elif word == "${args_no_hyphens}":
            found += [each.removeprefix("--") for each in arguments]
        elif str(word).startswith("${args_"):
            draft.notes.append(f"command: {word} is left out; read gangline_worker's parameters")
        elif word != "${env}":
            found.append(str(word))
    return found


# Determined


def determined(content: Mapping[str, Any]) -> Draft:
    """An experiment's configuration. Raises ForeignError."""
    draft = Draft(name_of(content.get("name", content.get("description", "experiment"))), {})
    searcher = content["searcher"]
    smaller = searcher.get("smaller_is_better", True)
    direction = "minimize" if smaller else "maximize"
    draft.fields["objective"] = {"metric": searcher["metric"], "direction": direction}
    kind = searcher.get("name", "random")
    space, fixed = {}, {}
    for name, found in _values(draft, content["hyperparameters"]):
        if not isinstance(found, Mapping):
            fixed[name] = found
        elif found["type"] == "const":
            fixed[name] = found["val"]
        else:
            space[name] = _determined_parameter(found, grid=kind == "grid")
    if not space:
        raise ForeignError("hyperparameters are all constant: there is nothing to search")
    draft.fields["space"] = space
    draft.sampler("random" if kind in _HALVING or kind == "single" else kind)
    if kind in _HALVING:
        _halving(draft, searcher)
    draft.fields["limits"] = given(
        trials=searcher.get("max_trials"), parallel=searcher.get("max_concurrent_trials") or None
    )
    slots = content.get("resources", {}).get("slots_per_trial", 1)
    image = content.get("environment", {}).get("image")
    if isinstance(image, Mapping):
        image = next((image[name] for name in ("cuda", "gpu", "cpu") if name in image), None)
    draft.fields["job"] = given(
        **_entry(draft, content.get("entrypoint")),
        image=image,
        resources={"gpus": int(slots)},
        hyperparameters=fixed or None,
    )
    draft.notes.append("the program reads its parameters by gangline_worker.hyperparameters()")
    draft.left_out("", content, _EXPERIMENT)
    draft.left_out("searcher.", searcher, _SEARCHER)
    return draft


def _entry(draft: Draft, entry: Any) -> dict[str, Any]:
    if isinstance(entry, list):
        return {"command": entry}
    text = str(entry or "python train.py")
    if " " not in text and ":" in text:
        draft.notes.append(f"entrypoint {text} is a class of Determined: write the command")
        return {"run": "python train.py"}
    if "determined" in text:
        draft.notes.append("entrypoint starts Determined's launcher: write the command")
    return {"run": text}


def _values(
    draft: Draft, content: Mapping[str, Any], before: str = ""
) -> Iterator[tuple[str, Any]]:
    """The hyperparameters, those of a group as GROUP.NAME."""
    for name, found in content.items():
        if isinstance(found, Mapping) and "type" not in found:
            draft.notes.append(f"hyperparameters.{before}{name}: named {before}{name}.NAME here")
            yield from _values(draft, found, f"{before}{name}.")
        else:
            yield before + name, found


def _determined_parameter(found: Mapping[str, Any], *, grid: bool) -> dict[str, Any]:
    kind = found["type"]
    if kind == "categorical":
        return choice(found["vals"])
    low, high, base = found["minval"], found["maxval"], float(found.get("base", 10))
    if grid and "count" in found:
        return choice(_points(kind, low, high, int(found["count"]), base))
    if kind == "log":
        return number_range(whole=False, low=base**low, high=base**high, log=True)
    return number_range(whole=kind == "int", low=low, high=high)


def _points(kind: str, low: float, high: float, count: int, base: float) -> list[float]:
    """The points of a grid, evenly spaced from `low` to `high`; of a log, exponents."""
    at = [low + (high - low) * place / max(1, count - 1) for place in range(count)]
    if kind == "log":
        return [base**each for each in at]
    return [*dict.fromkeys(map(round, at))] if kind == "int" else at


def _halving(draft: Draft, searcher: Mapping[str, Any]) -> None:
    length = searcher.get("max_time", searcher.get("max_length"))
    most = next(iter(length.values()), None) if isinstance(length, Mapping) else length
    factor = int(searcher.get("divisor", 4))
    rungs = int(searcher.get("num_rungs", searcher.get("max_rungs", 5)))
    stopping = (
        None if most is None else asha(first_rung(most, factor, max(1, rungs - 1)), most, factor)
    )
    if stopping is None:
        draft.notes.append(f"{searcher['name']}: set stopping with min_steps and max_steps")
        return
    draft.fields["stopping"] = stopping
    draft.notes.append("lengths count batches or epochs there and steps here: check stopping")
