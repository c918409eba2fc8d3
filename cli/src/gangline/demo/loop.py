"""The story of `gangline demo --loop`: from a new snapshot to the model that serves, and back.

1. A gate protects the alias `champion`. A snapshot is announced: it starts a pipeline.
2. The pipeline prepares the data without GPUs, searches the learning rate with 4 trials, exports
   the best trial's model, and scores it on held-out items.
3. The best trial's checkpoint becomes version 1. The gate passes it: `champion` moves.
4. A second pipeline trains with a learning rate that is far too small; its data come from the
   cache. The gate refuses its version 2, with the reason.
5. A person overrides the gate, and rolls back. An unmodified MLflow client sees each move.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gangline.demo.outcome import Outcome, Say
from gangline.errors import CliError
from gangline.sdk import Gangline
from gangline_schemas.api.pipelines import RunDetails, StepRow
from gangline_schemas.gate_file import Gate
from gangline_schemas.job_file import write_yaml

TEAM, MODEL, ALIAS = "default", "tiny", "champion"
SNAPSHOT = "words-1@xxh3-" + "1" * 32
TRIALS, STEPS, ITEMS = 4, 40, 256
WAIT_S = 400.0
TOO_SMALL = 1e-7
HELD_OUT, TEXT = "held-out", "words.txt"
_WORKDIR = "text"
"""Its content is part of the cache's key, so nothing else is written there."""
_WORDS = "the gang starts together every rank trains saves and resumes from its step"
_SIZES = {"dim": 32, "layers": 1, "heads": 2, "seq_len": 32, "batch_size": 8, "seed": 17}
_TRAINING = {**_SIZES, "data": "in:data", "steps": STEPS, "eval_every_steps": 20}
_GPU = {"gpus": 1, "memory_per_gpu_gb": 0.5}
_CPU = {"gpus": 0, "cpus": 1, "memory_gb": 1}


def play(client: Gangline, token: str, folder: Path, say: Say) -> Outcome:
    """Play the story on a platform that is up. Raises CliError when a part does not come."""
    outcome, began = Outcome(), time.monotonic()
    os.environ.update(
        MLFLOW_TRACKING_URI=f"{client.url}/mlflow/teams/{TEAM}", MLFLOW_TRACKING_TOKEN=token
    )
    _write_texts(folder / _WORKDIR)
    client.set_gate(Gate.model_validate(_gate()))
    say(f"a gate protects alias {ALIAS} of model {MODEL}: better on {HELD_OUT}, or no move")
    for spec in (_search(), _single()):
        file = folder / f"{spec['name']}.yaml"
        file.write_text(write_yaml(spec), encoding="utf-8")
        client.apply_pipeline(file)  # with its workdir

    begun = client.announce_snapshot(SNAPSHOT, TEAM).runs
    outcome.checks["one announced snapshot starts one run"] = (
        len(begun) == 1 and client.announce_snapshot(SNAPSHOT, TEAM).runs == []
    )
    say(f"snapshot {SNAPSHOT[:7]} is announced: it starts {begun[0]}")
    first = _ended(client, begun[0], say)
    outcome.figures["snapshot -> scores (s)"] = time.monotonic() - began
    best = _search_result(client, first, outcome, say)
    _promote_the_best(client, first, best, folder, outcome, say)
    _refuse_the_worse(client, folder, outcome, say)
    _override_and_roll_back(client, outcome, say)
    outcome.figures["the whole loop (s)"] = time.monotonic() - began
    return outcome


def _search_result(client: Gangline, run: RunDetails, outcome: Outcome, say: Say) -> str:
    """The job of the study's best trial."""
    study = client.study(_step(run, "tune").study_id)
    best = study.best
    if best is None:
        raise CliError(f"study {study.study_id} has no completed trial")
    rate = best.parameters["lr"]
    say(f"study of {study.trials.total} trials: trial {best.number} is best, lr {rate:.2g}, "
        f"eval_loss {best.value:.3f}")  # fmt: skip
    outcome.checks[f"the study ran {TRIALS} trials"] = study.trials.total == TRIALS
    prepared = client.get(_step(run, "prepare").job_id)
    outcome.checks["the data were prepared without GPUs"] = prepared.gpus == 0
    return best.job_id


def _promote_the_best(
    client: Gangline, run: RunDetails, job: str, folder: Path, outcome: Outcome, say: Say
) -> None:
    version = _register(client, job)
    mean = _score(client, run, version, job, folder)
    promoted = client.promote_version(MODEL, version, alias=ALIAS, expected=0)
    say(f"version {version} from {job}: accuracy {mean:.3f}; the gate says {promoted.verdict}")
    outcome.checks["the first champion passed the gate"] = promoted.moved
    outcome.checks["an MLflow client sees it"] = _seen(version)


def _refuse_the_worse(client: Gangline, folder: Path, outcome: Outcome, say: Say) -> None:
    begun = client.run_pipeline("single", {"lr": TOO_SMALL})
    run = _ended(client, begun.run_id, say)
    prepared = _step(run, "prepare")
    outcome.checks["the prepared data came from the cache"] = prepared.state == "cached"
    job = _step(run, "train").job_id
    version = _register(client, job)
    mean = _score(client, run, version, job, folder)
    refused = client.promote_version(MODEL, version, alias=ALIAS)
    say(f"version {version} from {job}: accuracy {mean:.3f}; the gate says {refused.verdict}")
    for finding in refused.findings:
        say(f"  {finding.subject}: {finding.text}")
    outcome.checks["the gate refused the worse candidate"] = (
        refused.verdict == "fail" and not refused.moved
    )
    outcome.checks["the champion stayed"] = _seen(1)


def _override_and_roll_back(client: Gangline, outcome: Outcome, say: Say) -> None:
    named = {"person": "ada", "reason": "to show a rollback"}
    client.promote_version(MODEL, 2, alias=ALIAS, override=named)
    outcome.checks["an override moves it, and names a person"] = _seen(2)
    asked = time.monotonic()
    move = client.roll_back(MODEL, alias=ALIAS, reason="the scores are worse")
    outcome.figures["rollback decided (s)"] = time.monotonic() - asked
    outcome.checks["the rollback reached MLflow"] = _seen(1)
    outcome.figures["rollback seen by MLflow (s)"] = time.monotonic() - asked
    say(f"rolled back from version {move.from_version} to {move.to_version}")
    kinds = [one.kind for one in client.moves(MODEL, ALIAS)]
    outcome.checks["the history names each move"] = kinds == ["rollback", "override", "gate"]
    found = client.lineage(MODEL, ALIAS)
    outcome.checks["lineage leads from the alias to the run"] = (
        found.run is not None and found.checkpoint is not None and found.command != []
    )


def _register(client: Gangline, job: str) -> int:
    """A version of the job's promoted checkpoint: validated by a run of its own."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            return client.register(MODEL, job=job, team=TEAM).version
        except CliError:
            if time.monotonic() > deadline:
                raise
            time.sleep(1)


def _score(client: Gangline, run: RunDetails, version: int, job: str, folder: Path) -> float:
    """Report the scores that the run's evaluation left; their mean."""
    target = folder / "scores" / run.run_id
    client.download_output(run.run_id, "evaluate", "scores", target)
    items = json.loads((target / "candidate" / f"{HELD_OUT}.json").read_text())["items"]
    client.report_scores(MODEL, version, HELD_OUT, items, job=job)
    return float(sum(items.values()) / len(items))


def _seen(version: int, within_s: float = 10.0) -> bool:
    """Whether an unmodified MLflow client finds the alias at this version."""
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    client, deadline = MlflowClient(), time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            if int(client.get_model_version_by_alias(MODEL, ALIAS).version) == version:
                return True
        except MlflowException:
            pass  # the alias was never set
        time.sleep(0.1)
    return False


def _ended(client: Gangline, run_id: str, say: Say) -> RunDetails:
    shown: set[tuple[str, str]] = set()

    def show(run: RunDetails) -> None:
        for row in run.step_rows:
            if (
                row.state in {"running", "succeeded", "cached"}
                and (row.name, row.state) not in shown
            ):
                shown.add((row.name, row.state))
                say(f"  {row.name} {row.state}")

    run = client.wait_pipeline_run(run_id, WAIT_S, on_change=show)
    if run.state != "succeeded":
        raise CliError(f"{run_id} is {run.state}: {run.reason}")
    return run


def _step(run: RunDetails, name: str) -> StepRow:
    return next(row for row in run.step_rows if row.name == name)


def _gate() -> dict[str, Any]:
    rule = {"rule": "better", "min_items": 200}
    return {
        "team": TEAM, "model": MODEL, "aliases": [ALIAS], "baseline": "current",
        "first": "accept", "suites": {HELD_OUT: rule},
    }  # fmt: skip


def _search() -> dict[str, Any]:
    study = {
        "objective": {"metric": "eval_loss"},
        "space": {"lr": {"type": "float", "low": 1e-4, "high": 3e-2, "log": True}},
        "sampler": "tpe",
        "seed": 3,
        "limits": {"trials": TRIALS, "parallel": 2},
        "job": _training("${{ lr }}"),
    }
    steps = {"tune": {"in": {"data": "prepare.snapshot"}, "study": study}}
    return _pipeline("search", steps, {"new-words": {"snapshot": "words-*"}})


def _single() -> dict[str, Any]:
    steps = {"train": {"in": {"data": "prepare.snapshot"}, "job": _training("${{ params.lr }}")}}
    return {**_pipeline("single", steps, {}), "params": {"lr": 1e-3}}


def _pipeline(
    name: str, training: Mapping[str, Any], triggers: Mapping[str, Any]
) -> dict[str, Any]:
    (trained,) = training
    shipped = ["python", "-m"]
    prepare = [*shipped, "gangline_worker.steps.prepare", TEXT, "--name", "words"]
    evaluate = [*shipped, "gangline_worker.steps.evaluate",
                "--suite", f"{HELD_OUT}={HELD_OUT}.txt", "--items", str(ITEMS)]  # fmt: skip
    return {
        "name": name,
        "team": TEAM,
        "steps": {
            "prepare": {
                "job": {"command": prepare, "workdir": _WORKDIR, "resources": _CPU},
                "out": ["snapshot"],
            },
            **training,
            "export": {
                "resume": trained,
                "job": {
                    "command": [*shipped, "gangline_worker.steps.export"],
                    "hyperparameters": {**_SIZES, "steps": STEPS},
                    "resources": _GPU,
                },
                "out": ["model", "serving"],
            },
            "evaluate": {
                "in": {"model": "export.model"},
                "job": {"command": evaluate, "workdir": _WORKDIR, "resources": _CPU},
                "out": {"scores": "folder", "accuracy": "score"},
            },
        },
        "triggers": dict(triggers),
    }  # fmt: skip


def _training(rate: str) -> dict[str, Any]:
    return {
        "command": ["python", "-m", "gangline_worker.training"],
        "hyperparameters": {**_TRAINING, "lr": rate},
        "resources": _GPU,
        "checkpoint": {"interval_minutes": 10, "promote": "final"},
    }


def _write_texts(folder: Path) -> None:
    """Sentences of few words, so that a small model learns; other ones for the evaluation."""
    folder.mkdir(parents=True, exist_ok=True)
    words = _WORDS.split()
    for name, seed, count in ((TEXT, 1, 20_000), (f"{HELD_OUT}.txt", 2, 4000)):
        draw = random.Random(seed)  # noqa: S311 - text, no secret
        text = " ".join(draw.choice(words) for _ in range(count))
        (folder / name).write_text(text, encoding="utf-8")
