"""`python -m gangline_worker.steps.register NAME`: a new version of a registered model.

- in: `model` or `serving`, as `export` leaves them; `scores`, as `evaluate` leaves it, if there are
  some.
- out: `version` (score): the version's number.

With `model`, its files become artifacts of the job's run, and the version points to them. If the
job restarts, it is the same version. Without `model`, the version is the checkpoint that was
exported, which must have validated itself: the step waits for that. The registry gets the version,
its scores, and the figures of `serving`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence

from gangline_schemas.models import VALIDATED_ITSELF
from gangline_worker.data.step_inputs import find
from gangline_worker.steps.folders import StepError, given, leave_score, read_json
from gangline_worker.steps.reports import Gateway, Refused

_FOLDER = "model"
_PAUSE_S = 5.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; gives the exit code."""
    parser = argparse.ArgumentParser(prog="python -m gangline_worker.steps.register")
    parser.add_argument("name", help="of the registered model; made if it is not there")
    parser.add_argument("--tag", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument(
        "--wait-minutes", type=float, default=30.0, help="for the checkpoint's validation"
    )
    options = parser.parse_args(arguments)
    try:
        gateway, tags = Gateway.of_job(), dict(_tag(text) for text in options.tag)
        if find("model") is None and find("serving") is not None:
            version = _of_checkpoint(gateway, options.name, options.wait_minutes * 60)
        else:
            version = _register(options.name, tags)
            if gateway is not None:
                gateway.report(options.name, "", {"version": version})
        if gateway is not None:
            _report(gateway, options.name, version)
        leave_score("version", float(version))
    except StepError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    sys.stdout.write(f"{options.name} version {version}\n")
    return 0


def _register(name: str, tags: dict[str, str]) -> int:
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    folder, scores, job = given("model"), find("scores"), os.environ["GANGLINE_RUN_ID"]
    run = os.environ.get("MLFLOW_RUN_ID")
    if not run:
        raise StepError(f"set `mlflow: {{run_id: true}}` in the step's job ({job})")
    client = MlflowClient()
    client.log_artifacts(run, str(folder), _FOLDER)
    if scores is not None:
        client.log_artifacts(run, str(scores), "scores")
    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    source = f"{client.get_run(run).info.artifact_uri}/{_FOLDER}"
    for one in client.search_model_versions(f"run_id = '{run}'"):
        if one.name == name and one.source == source:
            return int(one.version)  # an earlier attempt made it, and was killed before its end
    made = client.create_model_version(name, source, run, tags={"gangline.job": job, **tags})
    return int(made.version)


def _of_checkpoint(gateway: Gateway | None, name: str, wait_s: float) -> int:
    """The version of the checkpoint that was exported, once it has validated itself."""
    if gateway is None:
        raise StepError("a checkpoint is registered through the platform's own MLflow alone")
    wanted = read_json(given("serving") / "checkpoint.json")
    deadline = time.monotonic() + wait_s
    while True:
        try:
            return int(gateway.report(name, "", wanted)["version"])
        except Refused as error:
            if VALIDATED_ITSELF not in str(error) or time.monotonic() >= deadline:
                raise
            time.sleep(_PAUSE_S)


def _report(gateway: Gateway, name: str, version: int) -> None:
    """The evidence for gates: the figures of the export, and the candidate's scores."""
    serving, scores = find("serving"), find("scores")
    if serving is not None:
        gateway.report(name, f"/{version}/serving", read_json(serving / "serving.json"))
    if scores is not None:
        for path in sorted((scores / "candidate").glob("*.json")):
            body = {"suite": path.stem, "scores": read_json(path)["items"]}
            body["job_id"] = os.environ["GANGLINE_RUN_ID"]
            gateway.report(name, f"/{version}/evaluations", body)


def _tag(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found:
        raise StepError(f"--tag {text}: write it as NAME=VALUE")
    return name, value


if __name__ == "__main__":
    raise SystemExit(main())
