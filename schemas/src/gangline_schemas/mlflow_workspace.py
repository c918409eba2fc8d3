"""Names in MLflow: the workspace of each team, and the run and experiment of each job.

A workspace has the team's name, unless MLflow does not allow it. MLflow keeps some names for itself
and allows none of one letter. Teams of such names, and those that begin with the prefix, get it in
front, so no two teams share a workspace.

All runs that a job makes are its family: their ids begin with the same 16 digits as that of the
job's own run. So an id alone tells whether a run belongs to a job.
"""

from __future__ import annotations

import json
from functools import lru_cache

from gangline_schemas.envelope import derived_id
from gangline_schemas.job import JobSpec

PREFIX = "team-"
DEFAULT_TEAM = "default"
"""Where a caller of all teams logs who names none."""
JOB_TAG, ATTEMPT_TAG = "gangline.job", "gangline.attempt"
"""Tags of a job's run and of the runs that its program makes."""
JOB_HEADER = "x-gangline-job"
"""The gateway names the job of a request to the MLflow server; clients cannot."""
STUDY_TAG, TRIAL_TAG = "gangline.study", "gangline.trial"
"""The same, of the trials of a study: its id and the trial's number."""
TRIAL_METRICS_TAG = "gangline.trial.metrics"
"""The names of the metrics that decide, as a JSON list."""
PARENT_TAG = "mlflow.parentRunId"
FAMILY_CHARS = 16
LONGEST = 63
_NOT_ALLOWED = frozenset({"default", "workspaces", "api", "ajax-api", "static-files"})


def workspace_of(team: str) -> str:
    """The workspace of a team. Raises ValueError when its name would be too long for MLflow."""
    if len(team) > 1 and team not in _NOT_ALLOWED and not team.startswith(PREFIX):
        return team
    workspace = f"{PREFIX}{team}"
    if len(workspace) > LONGEST:
        raise ValueError(
            f"team {team}: MLflow serves no team whose name begins with {PREFIX} and has more than "
            f"{LONGEST - len(PREFIX)} characters"
        )
    return workspace


def team_of(workspace: str) -> str:
    """The team whose workspace it is."""
    return workspace.removeprefix(PREFIX)


@lru_cache(maxsize=4096)
def mlflow_run_id(job_id: str) -> str:
    """The id of the MLflow run of a job: 32 hexadecimal digits, the same wherever it is derived."""
    return derived_id("mlflow-run", job_id).replace("-", "")


def family_of(job_id: str) -> str:
    """The first digits of the ids of all MLflow runs of a job."""
    return mlflow_run_id(job_id)[:FAMILY_CHARS]


def experiment_of(spec: JobSpec) -> str:
    """The name of the MLflow experiment of a job: that of its team's project, or of its study."""
    if spec.trial is not None:
        return study_experiment(spec.team, spec.project, spec.trial.study_id)
    return f"{spec.team}/{spec.project or 'default'}"


def study_experiment(team: str, project: str | None, study_id: str) -> str:
    """The name of the MLflow experiment of a study's trials."""
    return f"{team}/{project or 'default'}/{study_id}"


def trial_tags(spec: JobSpec) -> dict[str, str]:
    """The tags of a trial's runs; none for other jobs."""
    trial = spec.trial
    if trial is None:
        return {}
    return {
        STUDY_TAG: trial.study_id,
        TRIAL_TAG: str(trial.number),
        TRIAL_METRICS_TAG: json.dumps(trial.metrics),
    }
