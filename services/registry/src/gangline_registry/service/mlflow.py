"""Asks the MLflow server of this installation for versions, and writes its table of aliases."""

from __future__ import annotations

from dataclasses import dataclass, field

import urllib3
from pydantic import ValidationError

from gangline_registry.core.model import Failed, Made, Project, Projected, Registration
from gangline_schemas.mlflow_registry import (
    ALIASES_PATH,
    REGISTRATION_TAG,
    VERSIONS_PATH,
    AliasesAnswer,
    AliasesQuery,
    AliasRow,
    VersionAnswer,
    VersionQuery,
)
from gangline_schemas.mlflow_workspace import (
    ATTEMPT_TAG,
    JOB_TAG,
    mlflow_run_id,
    team_of,
    workspace_of,
)

_TIMEOUT = urllib3.Timeout(connect=5.0, read=60.0)
"""The first request after a start waits until MLflow is loaded."""


class MlflowAway(Exception):
    """It does not answer, or cannot do it now."""


class MlflowRefused(Exception):
    """It does not do this, and would not later."""


class MlflowUnset(MlflowRefused):
    """There is no MLflow in this installation."""


@dataclass
class MlflowRegistry:
    """One MLflow server. May be used from any thread."""

    url: str | None
    token: str = field(repr=False, default="")

    def __post_init__(self) -> None:
        self._pool = urllib3.PoolManager(maxsize=4, timeout=_TIMEOUT, retries=False)

    def make(self, one: Registration) -> Made | Failed:
        """The version of a registration; the same one each time that it is asked for."""
        checkpoint = one.checkpoint
        run, source, tags = None, None, {REGISTRATION_TAG: str(one.number)}
        if checkpoint is not None:
            run = mlflow_run_id(checkpoint.job_id)
            source = f"runs:/{run}/checkpoints/{checkpoint.step}"
            tags |= {
                JOB_TAG: checkpoint.job_id,
                ATTEMPT_TAG: str(checkpoint.attempt),
                "gangline.step": str(checkpoint.step),
            }
        if one.snapshot is not None:
            tags["gangline.data_snapshot"] = one.snapshot
        try:
            asked = VersionQuery(
                workspace=workspace_of(one.team),
                model=one.model,
                version=one.version,
                run_id=run,
                source=source,
                description=one.description,
                tags=tags,
            )
            answer = self._ask(VERSIONS_PATH, asked.model_dump_json())
            return Made(VersionAnswer.model_validate_json(answer).version)
        except (MlflowRefused, ValueError) as error:
            return Failed(str(error), final=True)
        except MlflowAway as error:
            return Failed(str(error))

    def project(self, wanted: Project) -> Projected | Failed:
        """Bring the table of protected aliases to what the log says."""
        rows = [
            AliasRow(
                workspace=workspace_of(one.team),
                model=one.model,
                alias=one.alias,
                version=one.version,
                keep=one.keep,
            )
            for one in wanted.aliases
        ]
        try:
            answer = self._ask(ALIASES_PATH, AliasesQuery(aliases=tuple(rows)).model_dump_json())
            found = AliasesAnswer.model_validate_json(answer)
        except MlflowUnset as error:
            return Failed(str(error), until_restart=True)
        except (MlflowRefused, MlflowAway, ValidationError) as error:
            return Failed(str(error))
        repaired = tuple(
            (team_of(one.workspace), one.model, one.alias, one.version) for one in found.repaired
        )
        missing = tuple(
            f"{team_of(one.workspace)}/{one.model}/{one.version}" for one in found.missing
        )
        return Projected(repaired, missing)

    def _ask(self, path: str, body: str) -> bytes:
        if self.url is None:
            raise MlflowUnset("no MLflow server is set: GANGLINE_MLFLOW_URL")
        headers = {"authorization": f"Bearer {self.token}", "content-type": "application/json"}
        try:
            answer = self._pool.request("POST", self.url + path, body=body, headers=headers)
        except urllib3.exceptions.HTTPError as error:
            raise MlflowAway(f"MLflow does not answer: {type(error).__name__}") from None
        if answer.status == 200:
            return bytes(answer.data)
        text = answer.data[:500].decode(errors="replace")
        if 400 <= answer.status < 500 and answer.status != 429:
            raise MlflowRefused(_message(text))
        raise MlflowAway(f"MLflow answered with {answer.status}: {text}")


def _message(text: str) -> str:
    import json

    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return text
