"""Experiments of Katib (kubeflow.org/v1beta1) as parts of a study. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gangline.exchange.study_draft import Draft, ForeignError, choice, given, name_of, number_range

_PARAMETER = re.compile(r"\$\{trialParameters\.([^}]+)\}")
_GPU = "nvidia.com/gpu"
_KNOWN = (
    "objective", "algorithm", "earlyStopping", "parameters", "maxTrialCount", "parallelTrialCount",
    "maxFailedTrialCount", "trialTemplate",
)  # fmt: skip
_SIZES = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "k": 1e3, "M": 1e6, "G": 1e9}


def katib(content: Mapping[str, Any]) -> Draft:
    """The study of an Experiment. Raises ForeignError."""
    spec = content["spec"]
    draft = Draft(name_of(content.get("metadata", {}).get("name", "study")), {})
    if "parameters" not in spec:
        raise ForeignError("spec.parameters is missing: a search of architectures is not here")
    goal = spec["objective"]
    direction = "maximize" if goal.get("type") == "maximize" else "minimize"
    draft.fields["objective"] = {"metric": goal["objectiveMetricName"], "direction": direction}
    if "goal" in goal:
        draft.notes.append("objective.goal: a study does not end at a value; set limits")
    draft.fields["space"] = {
        each["name"]: _parameter(draft, each) for each in spec["parameters"]
    }  # fmt: skip
    _algorithm(draft, spec.get("algorithm", {}).get("algorithmName", "random"))
    _stopping(draft, spec.get("earlyStopping"))
    draft.fields["limits"] = given(
        trials=spec.get("maxTrialCount"),
        parallel=spec.get("parallelTrialCount"),
        failed=spec.get("maxFailedTrialCount"),
    )
    draft.fields["job"] = _job(draft, spec.get("trialTemplate", {}))
    draft.left_out("spec.", spec, _KNOWN)
    return draft


def _parameter(draft: Draft, found: Mapping[str, Any]) -> dict[str, Any]:
    room, kind, name = found["feasibleSpace"], found["parameterType"], found["name"]
    if kind in {"categorical", "discrete"}:
        values = room["list"]
        return choice([_number(each) for each in values] if kind == "discrete" else values)
    distribution = str(room.get("distribution", "uniform"))
    if "normal" in distribution.lower():
        draft.notes.append(f"parameters.{name}: {distribution} is searched evenly in its range")
    log = distribution.startswith("log")
    step = None if log or "step" not in room else _number(room["step"])
    low, high = _number(room["min"]), _number(room["max"])
    return number_range(whole=kind == "int", low=low, high=high, step=step, log=log)


def _algorithm(draft: Draft, name: str) -> None:
    if name == "pbt":
        draft.notes.append("algorithm pbt: set stopping with kind pbt and interval_steps")
    elif name == "hyperband":
        draft.notes.append("algorithm hyperband: set stopping with min_steps and max_steps")
    draft.sampler(name)


def _stopping(draft: Draft, found: Mapping[str, Any] | None) -> None:
    if found is None:
        return
    if found.get("algorithmName") != "medianstop":
        draft.notes.append("earlyStopping is left out: set stopping, for example median")
        return
    settings = {each["name"]: each["value"] for each in found.get("algorithmSettings", ())}
    draft.fields["stopping"] = {
        "kind": "median",
        "startup_trials": int(settings.get("min_trials_required", 3)),
        "warmup_steps": int(settings.get("start_step", 4)),
    }
    draft.notes.append("earlyStopping counts reports, stopping counts steps: check warmup_steps")


def _job(draft: Draft, template: Mapping[str, Any]) -> dict[str, Any]:
    named = {each["name"]: str(each["reference"]) for each in template.get("trialParameters", ())}
    of_trial = {name for name, reference in named.items() if reference.startswith("${trialSpec")}
    main, workers = _container(draft, template)

    def replaced(text: object) -> str:
        return _PARAMETER.sub(
            lambda match: f"${{{{ {named.get(match[1], match[1])} }}}}", str(text)
        )

    env = {}
    for each in main.get("env", ()):
        used = set(_PARAMETER.findall(str(each.get("value", ""))))
        if "value" not in each or used & of_trial:
            draft.notes.append(f"env {each['name']} is left out: its value comes from Kubernetes")
        else:
            env[each["name"]] = replaced(each["value"])
    words = (*main.get("command", ()), *main.get("args", ()))
    draft.notes.append("metrics: let the program call report({...}, step) or log to MLflow")
    limits = main.get("resources", {}).get("limits") or main.get("resources", {}).get("requests")
    return given(
        image=main.get("image"),
        command=[replaced(word) for word in words],
        env=env or None,
        resources=_resources(draft, limits or {}, workers),
    )


def _container(draft: Draft, template: Mapping[str, Any]) -> tuple[Mapping[str, Any], int]:
    """The container that trains, and how many of it a trial has."""
    spec = template.get("trialSpec", {}).get("spec", {})
    trainer = spec.get("trainer")
    if trainer is not None:  # a TrainJob
        return trainer, int(trainer.get("numNodes", 1))
    sets = next((value for name, value in spec.items() if name.endswith("ReplicaSpecs")), None)
    pods = [(1, spec)] if sets is None else [
        (int(one.get("replicas", 1)), one) for one in sets.values()
    ]  # fmt: skip
    wanted = template.get("primaryContainerName")
    found = [
        each
        for _, pod in pods
        for each in pod.get("template", {}).get("spec", {}).get("containers") or ()
    ]
    if not found:
        raise ForeignError("spec.trialTemplate has no container: write the job by hand")
    workers = sum(count for count, _ in pods)
    if len(found) > len(pods):
        draft.notes.append("containers beside the primary one are left out")
    return next((each for each in found if each.get("name") == wanted), found[0]), workers


def _resources(draft: Draft, limits: Mapping[str, Any], workers: int) -> dict[str, Any]:
    if workers > 1:
        draft.notes.append(f"{workers} replicas: their ranks all run the primary one's command")
    if _GPU in limits:
        return {"gpus": workers * int(limits[_GPU])}
    if "cpu" in limits and "memory" in limits:
        nodes = {"nodes": workers} if workers > 1 else {}
        return {
            "gpus": 0, "cpus": _cpus(limits["cpu"]), "memory_gb": _gb(limits["memory"]), **nodes
        }  # fmt: skip
    draft.notes.append("resources: none are named; each rank has 1 GPU")
    return {"gpus": workers}


def _cpus(text: Any) -> float:
    held = str(text)
    return float(held.removesuffix("m")) / 1000 if held.endswith("m") else float(held)


def _gb(text: Any) -> float:
    held = str(text)
    unit = next((unit for unit in _SIZES if held.endswith(unit)), "")
    return round(float(held.removesuffix(unit)) * _SIZES.get(unit, 1) / 1e9, 3)


def _number(text: Any) -> float:
    value = float(text)
    return int(value) if value.is_integer() and "." not in str(text) else value
