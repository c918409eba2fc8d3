"""Reports of a step to the gateway, with the token that jobs have for MLflow."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit

from gangline_worker.data.profile import SnapshotProfile
from gangline_worker.steps.folders import StepError

_MLFLOW = "/mlflow/"
_TEAMS = "teams/"
_TIMEOUT_S = 60.0
_PAUSE_S = 5.0
_TRIES = 5
_TOO_MANY, _SERVER_ERROR = 429, 500


class Refused(StepError):
    """The gateway refuses a report: its reason."""


@dataclass(frozen=True)
class Gateway:
    """The models and data of the job's team, at one gateway."""

    url: str
    team: str
    token: str = field(repr=False)

    @classmethod
    def of_job(cls) -> Gateway | None:
        """The gateway that serves the job's MLflow; None: its MLflow is another server."""
        where, token = (os.environ.get(f"MLFLOW_TRACKING_{name}", "") for name in ("URI", "TOKEN"))
        parts = urlsplit(where)
        if not token or not parts.path.startswith(_MLFLOW):
            return None
        team = parts.path.rpartition(_TEAMS)[2]
        return cls(f"{parts.scheme}://{parts.netloc}", team, token)

    def report(self, model: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Send a report about a model. Raises Refused, and StepError if the gateway stays away."""
        return self._send(f"/v1/models/{quote(model, safe='')}/versions{path}", body)

    def profile(self, found: SnapshotProfile) -> None:
        """Send the profile of a snapshot. Raises Refused, and StepError as above."""
        self._send(
            f"/v1/profiles?team={quote(self.team)}",
            found.model_dump(mode="json", exclude={"sources"}),
        )

    def _send(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        import requests

        url = f"{self.url}{path}"
        headers = {"authorization": f"Bearer {self.token}"}
        trust = os.environ.get("MLFLOW_TRACKING_SERVER_CERT_PATH") or True
        problem = ""
        for number in range(_TRIES):
            if number:
                time.sleep(_PAUSE_S)
            try:
                answer = requests.post(
                    url, json=body, headers=headers, timeout=_TIMEOUT_S, verify=trust
                )
            except requests.RequestException as error:
                problem = type(error).__name__
                continue
            if answer.ok:
                found: dict[str, Any] = answer.json()
                return found
            problem = f"{answer.status_code}: {_detail(answer)}"
            if answer.status_code < _SERVER_ERROR and answer.status_code != _TOO_MANY:
                raise Refused(_detail(answer))
        raise StepError(f"the gateway does not take the report: {problem}")


def _detail(answer: Any) -> str:
    try:
        return str(answer.json()["detail"])
    except (ValueError, KeyError, TypeError):
        return str(answer.text[:300])
