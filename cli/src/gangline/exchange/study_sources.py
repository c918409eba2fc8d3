"""Reads the searches of Katib, W&B and Determined into the parts of a study. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_NOT_NAME = re.compile(r"[^a-z0-9-]+")
_KATIB_PARAMETER = re.compile(r"\$\{trialParameters\.([^}]+)\}")
_GPU = "nvidia.com/gpu"


class ForeignError(Exception):
    """A part that a study needs is missing, or has no counterpart here."""


@dataclass
class Draft:
    """The name and the other fields of a study file, and notes on what was left out."""

    name: str
    fields: dict[str, Any]
    notes: list[str] = field(default_factory=list)


def name_of(text: object) -> str:
    """A name as ours have it: a-z, 0-9 and '-'."""
    return _NOT_NAME.sub("-", str(text).lower()).strip("-")[:40].strip("-") or "study"


# Katib


def katib(content: Mapping[str, Any]) -> Draft:
    """An Experiment of kubeflow.org."""
    spec = content["spec"]
    draft = Draft(name_of(content.get("metadata", {}).get("name", "study")), {})
    goal = spec["objective"]
    direction = "maximize" if goal.get("type") == "maximize" else "minimize"
    draft.fields["objective"] = {
        "metric": goal["objectiveMetricName"], "direction": direction
    }  # fmt: skip
    if "goal" in goal:
        draft.notes.append("objective.goal: a study does not end at a value; set limits")
    draft.fields["space"] = {each["name"]: _katib_parameter(each) for each in spec["parameters"]}
    algorithm = spec.get("algorithm", {}).get("algorithmName", "random")
    _sampler(draft, algorithm)
    if algorithm == "hyperband":
        draft.notes.append("algorithm hyperband: set stopping with min_steps and max_steps")
    if "earlyStopping" in spec:
        draft.notes.append("earlyStopping is left out: set stopping, for example median")
    draft.fields["limits"] = _given(
        trials=spec.get("maxTrialCount"),
        parallel=spec.get("parallelTrialCount"),
        failed=spec.get("maxFailedTrialCount"),
    )
    draft.fields["job"] = _katib_job(draft, spec.get("trialTemplate", {}))
    return draft


def _katib_parameter(found: Mapping[str, Any]) -> dict[str, Any]:
    room, kind = found["feasibleSpace"], found["parameterType"]
    if kind in {"categorical", "discrete"}:
        values = room["list"]
        return _choice([_number(each) for each in values] if kind == "discrete" else values)
    log = str(room.get("distribution", "")).startswith("log")
    return _range(
        whole=kind == "int",
        low=_number(room["min"]),
        high=_number(room["max"]),
        step=None if log or "step" not in room else _number(room["step"]),
        log=log,
    )


def _katib_job(draft: Draft, template: Mapping[str, Any]) -> dict[str, Any]:
    names = {each["name"]: each["reference"] for each in template.get("trialParameters", ())}
    pod = template.get("trialSpec", {}).get("spec", {}).get("template", {}).get("spec", {})
    containers = pod.get("containers") or ()
    if not containers:
        raise ForeignError("spec.trialTemplate has no container: write the job by hand")
    wanted = template.get("primaryContainerName")
    main = next((each for each in containers if each.get("name") == wanted), containers[0])
    words = [str(word) for word in (*main.get("command", ()), *main.get("args", ()))]
    command = [
        _KATIB_PARAMETER.sub(lambda match: f"${{{{ {names.get(match[1], match[1])} }}}}", word)
        for word in words
    ]
    limits = main.get("resources", {}).get("limits", {})
    if len(containers) > 1:
        draft.notes.append("containers beside the primary one are left out")
    draft.notes.append("metrics: let the program call report({...}, step) or log to MLflow")
    gpus = int(limits.get(_GPU, 1))
    return _given(image=main.get("image"), command=command, resources={"gpus": gpus})


# W&B


def wandb(content: Mapping[str, Any]) -> Draft:
    """A sweep's configuration."""
    draft = Draft(name_of(content.get("name", "sweep")), {})
    goal = content.get("metric")
    if not isinstance(goal, Mapping):
        raise ForeignError("metric is missing: name the metric and its goal")
    draft.fields["objective"] = {"metric": goal["name"], "direction": goal.get("goal", "minimize")}
    space, fixed = {}, {}
    for name, found in content["parameters"].items():
        if "value" in found:
            fixed[name] = found["value"]
        elif "parameters" in found:
            raise ForeignError(f"parameters.{name}: nested parameters; write them side by side")
        else:
            space[name] = _wandb_parameter(draft, name, found)
    draft.fields["space"] = space
    _sampler(draft, {"bayes": "tpe"}.get(content["method"], content["method"]))
    _wandb_stopping(draft, content.get("early_terminate"))
    draft.fields["limits"] = _given(trials=content.get("run_cap"))
    command = _wandb_command(content, [*fixed, *space], fixed)
    draft.fields["job"] = _given(
        command=command, resources={"gpus": 1}, hyperparameters=fixed or None
    )
    draft.notes.append("resources: a sweep names none; the job has 1 GPU")
    return draft


def _wandb_parameter(draft: Draft, name: str, found: Mapping[str, Any]) -> dict[str, Any]:
    if "values" in found:
        if "probabilities" in found:
            draft.notes.append(f"parameters.{name}: probabilities are left out")
        return _choice(found["values"])
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
    return _range(whole=whole, low=low, high=high, step=step, log=log)


def _wandb_stopping(draft: Draft, found: Mapping[str, Any] | None) -> None:
    if not found:
        return
    if "min_iter" not in found:
        draft.notes.append("early_terminate is left out: without min_iter it names no first step")
        return
    factor = int(found.get("eta", 3))
    stopping: dict[str, Any] = {
        "kind": "asha", "min_steps": int(found["min_iter"]), "factor": factor
    }  # fmt: skip
    if "max_iter" in found:
        stopping["max_steps"] = int(found["max_iter"])
    draft.fields["stopping"] = stopping
    draft.notes.append("early_terminate counts calls of log, stopping counts steps: check both")


def _wandb_command(
    content: Mapping[str, Any], names: Sequence[str], fixed: Mapping[str, Any]
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
        elif word != "${env}":
            found.append(str(word))
    return found


# Determined


def determined(content: Mapping[str, Any]) -> Draft:
    """An experiment's configuration."""
    draft = Draft(name_of(content.get("name", "experiment")), {})
    searcher = content["searcher"]
    smaller = searcher.get("smaller_is_better", True)
    direction = "minimize" if smaller else "maximize"
    draft.fields["objective"] = {"metric": searcher["metric"], "direction": direction}
    space, fixed = {}, {}
    for name, found in content["hyperparameters"].items():
        if not isinstance(found, Mapping):
            fixed[name] = found
        elif found.get("type") == "const":
            fixed[name] = found["val"]
        elif "type" not in found:
            raise ForeignError(f"hyperparameters.{name}: nested; write them side by side")
        else:
            space[name] = _determined_parameter(found)
    if not space:
        raise ForeignError("hyperparameters are all constant: there is nothing to search")
    draft.fields["space"] = space
    _determined_searcher(draft, searcher)
    draft.fields["limits"] = _given(
        trials=searcher.get("max_trials"), parallel=searcher.get("max_concurrent_trials") or None
    )
    entry = content.get("entrypoint", "python train.py")
    command = entry if isinstance(entry, list) else None
    slots = content.get("resources", {}).get("slots_per_trial", 1)
    image = content.get("environment", {}).get("image")
    draft.fields["job"] = _given(
        command=command,
        run=None if command else str(entry),
        image=image if isinstance(image, str) else None,
        resources={"gpus": int(slots)},
        hyperparameters=fixed or None,
    )
    draft.notes.append("the program reads its parameters by gangline_worker.hyperparameters()")
    return draft


def _determined_parameter(found: Mapping[str, Any]) -> dict[str, Any]:
    kind = found["type"]
    if kind == "categorical":
        return _choice(found["vals"])
    low, high = found["minval"], found["maxval"]
    if kind == "log":
        base = float(found.get("base", 10))
        return _range(whole=False, low=base**low, high=base**high, step=None, log=True)
    return _range(whole=kind == "int", low=low, high=high, step=None, log=False)


def _determined_searcher(draft: Draft, searcher: Mapping[str, Any]) -> None:
    kind = searcher.get("name", "random")
    _sampler(draft, "random" if kind in {"adaptive_asha", "async_halving", "single"} else kind)
    if kind not in {"adaptive_asha", "async_halving"}:
        return
    length = searcher.get("max_time", searcher.get("max_length"))
    most = next(iter(length.values())) if isinstance(length, Mapping) else length
    factor = int(searcher.get("divisor", 4))
    rungs = int(searcher.get("num_rungs", searcher.get("max_rungs", 3)))
    if most is None:
        draft.notes.append(f"{kind}: set stopping with min_steps and max_steps")
        return
    least = max(1, int(most) // factor ** max(1, rungs - 1))
    draft.fields["stopping"] = {
        "kind": "asha", "min_steps": least, "max_steps": int(most), "factor": factor
    }  # fmt: skip
    draft.notes.append("lengths count batches or epochs there and steps here: check stopping")


# All


def _sampler(draft: Draft, name: str) -> None:
    known = {
        "random": "random", "grid": "grid", "tpe": "tpe", "bayesianoptimization": "tpe",
        "multivariate-tpe": "tpe", "cmaes": "cmaes", "hyperband": "random",
    }  # fmt: skip
    draft.fields["sampler"] = known.get(name, "auto")
    if name not in known:
        draft.notes.append(f"algorithm {name} is not here: the sampler is auto")


def _choice(values: Sequence[Any]) -> dict[str, Any]:
    return {"type": "choice", "values": list(values)}


def _range(
    *, whole: bool, low: float, high: float, step: float | None, log: bool
) -> dict[str, Any]:
    kind = int if whole else float
    found: dict[str, Any] = {"type": kind.__name__, "low": kind(low), "high": kind(high)}
    if log:
        found["log"] = True
    elif step is not None:
        found["step"] = kind(step)
    return found


def _number(text: Any) -> float:
    value = float(text)
    return int(value) if value.is_integer() and "." not in str(text) else value


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
