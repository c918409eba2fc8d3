"""The tracking server: MLflow's REST, as the gateway serves it for one team.

Each method raises `Away` when it should be tried again later, and `Refused` when that is of no use.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import httpx

from gangline.transport import Transport, problem_of, retry_after_s
from gangline_schemas.mlflow_workspace import DEFAULT_TEAM

CLIENT_TAG: Final = "sdk.client_run"
PARAMS_PER_REQUEST: Final = 100
ANSWER_TIMEOUT_S: Final = 60.0
"""The first request after a start waits until the server has loaded MLflow."""
STORED_TIMEOUT_S: Final = 600.0
"""The store may take a while to put a large file together."""
_CHUNK_BYTES: Final = 1 << 20
_LATER: Final = frozenset({408, 425, 429})
_AWAY: Final = frozenset({502, 503, 504})
_OF_A_PROXY: Final = frozenset({400, 404, 405, 409, 410, 421})
"""As pages, once the server has spoken: a proxy on the way is being changed."""


class Away(Exception):
    """Nothing answers now, or the server asks to come later; `wait_s`: the pause it asks for."""

    def __init__(self, message: str, wait_s: float = 0.0) -> None:
        super().__init__(message)
        self.wait_s = wait_s


class Faulty(Away):
    """The server answers, but fails on this request (500), now or each time."""


class Refused(Exception):
    """The server's answer will not change. `code` is MLflow's, or empty."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


class TrackingServer:
    """MLflow's REST below `base` of a gateway; without one, that of the token's team."""

    def __init__(
        self, transport: Transport, *, base: str | None = None, team: str | None = None
    ) -> None:
        self._transport = transport
        self._base, self._team = base, team
        self._artifacts: dict[str, str] = {}
        self._has_spoken = False

    @property
    def url(self) -> str:
        """The server's URL without the team."""
        return self._transport.url

    def page_of(self, experiment_id: str, run_id: str) -> str:
        """A run's page in MLflow's UI."""
        return f"{self.url}{self._base}/#/experiments/{experiment_id}/runs/{run_id}"

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def enter(self, known: str | None = None) -> str | None:
        """Find the token's team, unless one was given or is `known`; gives the team."""
        if self._base is None:
            who = None if known or self._team else self._send("GET", "/v1/whoami")
            team = known or self._team or team_of((who or {}).get("teams") or [])
            self._team, self._base = team, f"/mlflow/teams/{quote(team, safe='')}"
        return self._team

    def experiment(self, name: str) -> str:
        """The id of an experiment, which is made if there is none."""
        query = {"experiment_name": name}
        try:
            return str(self._get("experiments/get-by-name", query)["experiment"]["experiment_id"])
        except Refused as refused:
            if refused.code != "RESOURCE_DOES_NOT_EXIST":
                raise
        try:
            return str(self._post("experiments/create", {"name": name})["experiment_id"])
        except Refused as refused:
            if refused.code != "RESOURCE_ALREADY_EXISTS":
                raise
        return str(self._get("experiments/get-by-name", query)["experiment"]["experiment_id"])

    def find_run(self, experiment_id: str, client_id: str) -> str | None:
        """The id of the run that a process made before, even if the answer was lost."""
        found = self._post(
            "runs/search",
            {
                "experiment_ids": [experiment_id],
                "filter": f"tags.`{CLIENT_TAG}` = '{client_id}'",
                "max_results": 1,
            },
        ).get("runs")
        return str(found[0]["info"]["run_id"]) if found else None

    def create_run(
        self, experiment_id: str, name: str | None, started_ms: int, tags: Mapping[str, str]
    ) -> str:
        """Make a run; gives its id."""
        body = {
            "experiment_id": experiment_id,
            "start_time": started_ms,
            "run_name": name,
            "tags": _pairs(tags),
        }
        made = self._post("runs/create", {k: v for k, v in body.items() if v is not None})
        return str(made["run"]["info"]["run_id"])

    def run_info(self, run_id: str) -> dict[str, Any]:
        """A run's `info` as MLflow gives it."""
        found: dict[str, Any] = self._get("runs/get", {"run_id": run_id})["run"]["info"]
        return found

    def log_metrics(self, run_id: str, metrics: Sequence[bytes]) -> None:
        """Log up to 1,000 metrics, each as JSON text; sent twice, they are there once."""
        body = b'{"run_id":%s,"metrics":[%s]}' % (json.dumps(run_id).encode(), b",".join(metrics))
        self._mlflow("POST", "runs/log-batch", content=body)

    def log_params(self, run_id: str, params: Sequence[tuple[str, str]]) -> None:
        """Log parameters, as name and text; the same ones again change nothing."""
        self._in_parts(run_id, "params", params)

    def set_tags(self, run_id: str, tags: Sequence[tuple[str, str]]) -> None:
        """Set tags, each as name and text."""
        self._in_parts(run_id, "tags", tags)

    def _in_parts(self, run_id: str, field: str, values: Sequence[tuple[str, str]]) -> None:
        pairs = _pairs(dict(values))
        for at in range(0, len(pairs), PARAMS_PER_REQUEST):
            self._post(
                "runs/log-batch", {"run_id": run_id, field: pairs[at : at + PARAMS_PER_REQUEST]}
            )

    def update_run(self, run_id: str, status: str, end_ms: int | None = None) -> None:
        """Set a run's status."""
        body: dict[str, Any] = {"run_id": run_id, "status": status}
        if end_ms is not None:
            body["end_time"] = end_ms
        self._post("runs/update", body)

    def put_file(self, run_id: str, file: Path, name: str, sent: Callable[[int], None]) -> None:
        """Upload an artifact in pieces; `sent` is called with the bytes of each."""
        if run_id not in self._artifacts:
            self._artifacts[run_id] = self._artifacts_of(run_id)
        path = quote(f"{self._artifacts[run_id]}/{name}")
        self._send(
            "PUT",
            f"{self._base}/api/2.0/mlflow-artifacts/artifacts/{path}",
            content=_pieces(file, sent),
            headers={"Content-Type": "application/octet-stream"},
            timeout_s=STORED_TIMEOUT_S,
        )

    def _artifacts_of(self, run_id: str) -> str:
        uri = str(self.run_info(run_id)["artifact_uri"])
        scheme, _, place = uri.partition(":")
        if scheme != "mlflow-artifacts":
            raise Refused(0, "", f"the run's artifacts are at {uri}, not on the server")
        return place.strip("/")

    def _get(self, path: str, query: Mapping[str, str]) -> Any:
        return self._mlflow("GET", path, params=query)

    def _post(self, path: str, body: Mapping[str, Any]) -> Any:
        return self._mlflow("POST", path, content=json.dumps(body).encode())

    def _mlflow(self, method: str, path: str, **options: Any) -> Any:
        headers = {"Content-Type": "application/json"}
        return self._send(method, f"{self._base}/api/2.0/mlflow/{path}", headers=headers, **options)

    def _send(self, method: str, path: str, **options: Any) -> Any:
        try:
            answer = self._transport.send(
                method, path, **{"timeout_s": ANSWER_TIMEOUT_S, **options}
            )
        except httpx.ConnectError:
            raise Away(f"nothing answers at {self.url}") from None
        except httpx.TransportError as error:
            raise Away(f"no answer from {self.url}: {type(error).__name__}") from None
        if answer.is_success:
            try:
                read = answer.json() if answer.content else {}
                self._has_spoken = True
                return read
            except ValueError:  # a proxy on the way speaks, not the server
                raise Away(f"the answer of {self.url} is not JSON") from None
        message, code, is_page = _problem(answer)
        status = answer.status_code
        if status >= 500 and status not in _AWAY:
            raise Faulty(f"{self.url}: {message}", retry_after_s(answer))
        if is_page and self._has_spoken and status in _OF_A_PROXY:
            raise Away(f"the answer of {self.url} is not JSON (status {status})")
        if status >= 500 or status < 400 or status in _LATER:
            raise Away(f"{self.url}: {message}", retry_after_s(answer))
        raise Refused(status, code, message)


def team_of(teams: Sequence[str]) -> str:
    """The team of a token without a choice. Raises Refused."""
    if len(teams) == 1 and teams[0] != "*":
        return str(teams[0])
    if not teams or DEFAULT_TEAM in teams or "*" in teams:
        return DEFAULT_TEAM
    raise Refused(0, "", f"the token is of several teams ({', '.join(teams)}): give team=...")


def _problem(answer: httpx.Response) -> tuple[str, str, bool]:
    """The problem in the server's words, MLflow's code, and whether it is not JSON."""
    try:
        read = answer.json()
    except ValueError:
        return problem_of(answer).message, "", True
    if isinstance(read, dict) and "error_code" in read:
        return str(read.get("message") or read["error_code"]), str(read["error_code"]), False
    return problem_of(answer).message, "", False


def _pairs(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in values.items()]


def _pieces(file: Path, sent: Callable[[int], None]) -> Iterator[bytes]:
    with file.open("rb") as opened:
        while piece := opened.read(_CHUNK_BYTES):
            yield piece
            sent(len(piece))
