"""Variables by which a gang's program logs to MLflow without a setting of its own."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from gangline_schemas.events.scheduling import GangAllocated
from gangline_schemas.mlflow_workspace import (
    ATTEMPT_TAG,
    JOB_TAG,
    PARENT_TAG,
    experiment_of,
    mlflow_run_id,
    trial_tags,
)
from gangline_service.job_tokens import JobAttempt, make_token
from gangline_storage.shared_secret import SharedSecret

URI = "MLFLOW_TRACKING_URI"
TOKEN = "MLFLOW_TRACKING_TOKEN"  # noqa: S105 -- a variable's name


@dataclass(frozen=True)
class MlflowAccess:
    """Where ranks reach the gateway's /mlflow, and the secret that their tokens are made with."""

    uri: str
    secret: SharedSecret = field(repr=False)

    def variables(self, allocation: GangAllocated) -> dict[str, str]:
        """Those of all ranks of an attempt. Raises StoreError.

        Each run that a program starts becomes a child of the job's run, unless the job asks for
        MLFLOW_RUN_ID: then the first one is the job's run.
        """
        job_id, attempt, spec = allocation.job_id, allocation.attempt, allocation.spec
        tags = {
            PARENT_TAG: mlflow_run_id(job_id),
            JOB_TAG: job_id,
            ATTEMPT_TAG: str(attempt),
            **trial_tags(spec),
        }
        found = {
            URI: f"{self.uri.rstrip('/')}/teams/{allocation.team}",
            TOKEN: make_token(self.secret.value(), JobAttempt(job_id, attempt)),
            "MLFLOW_EXPERIMENT_NAME": experiment_of(spec),
            "MLFLOW_RUN_CONTEXT": json.dumps(tags),
        }
        if spec.mlflow is not None and spec.mlflow.run_id:
            found["MLFLOW_RUN_ID"] = mlflow_run_id(job_id)
        return found
