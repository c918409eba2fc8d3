"""`python -m gangline_worker.steps.register NAME`: a model as a new version in MLflow's registry.

- in: `model`, as `export` leaves it; `scores`, as `evaluate` leaves it, if there are some.
- out: `version` (score): the version's number.

The files become artifacts of the job's run, and the version points to them.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from gangline_worker.data.step_inputs import find
from gangline_worker.steps.folders import StepError, given, leave_score

_FOLDER = "model"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; gives the exit code."""
    parser = argparse.ArgumentParser(prog="python -m gangline_worker.steps.register")
    parser.add_argument("name", help="of the registered model; made if it is not there")
    parser.add_argument("--tag", action="append", default=[], metavar="NAME=VALUE")
    options = parser.parse_args(arguments)
    try:
        version = _register(options.name, dict(_tag(text) for text in options.tag))
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
    made = client.create_model_version(name, source, run, tags={"gangline.job": job, **tags})
    leave_score("version", float(made.version))
    return int(made.version)


def _tag(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found:
        raise StepError(f"--tag {text}: write it as NAME=VALUE")
    return name, value


if __name__ == "__main__":
    raise SystemExit(main())
