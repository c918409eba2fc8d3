"""Variables by which a gang's program logs to MLflow without a setting of its own."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path

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
AUTHORITY = "gateway-ca.pem"
"""In a gang's folder, beside its code."""
_TRUST = ("MLFLOW_TRACKING_SERVER_CERT_PATH", "GANGLINE_CA_FILE")
TOKEN = "MLFLOW_TRACKING_TOKEN"  # noqa: S105 -- a variable's name


@dataclass(frozen=True)
class MlflowAccess:
    """Where ranks reach the gateway's /mlflow, and the secret that their tokens are made with."""

    uri: str
    secret: SharedSecret = field(repr=False)
    ca_file: Path | None = None
    """The authority of the gateway's certificate; None: the system's."""

    def put_authority(self, work: Path) -> None:
        """Copy the authority's file into a gang's folder. Raises OSError."""
        if self.ca_file is not None:
            shutil.copyfile(self.ca_file, work / AUTHORITY)

    def variables(self, allocation: GangAllocated, work: Path) -> dict[str, str]:
        """Those of all ranks of an attempt, whose folder is `work`. Raises StoreError.

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
            # Its thread removes a variable while requests reads all of them: a logged metric then
            # raises KeyError.
            "MLFLOW_DISABLE_TELEMETRY": "true",
        }
        if self.ca_file is not None:
            found |= dict.fromkeys(_TRUST, str(work / AUTHORITY))
        if spec.mlflow is not None and spec.mlflow.run_id:
            found["MLFLOW_RUN_ID"] = mlflow_run_id(job_id)
        return found
