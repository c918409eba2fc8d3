"""A client of the gateway's REST: jobs and nodes."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import httpx
from pydantic import ValidationError

from gangline_schemas.api.base import Answer
from gangline_schemas.api.cluster import NodeList
from gangline_schemas.api.jobs import ENDED, Job, JobPage, JobSummary
from gangline_schemas.job import JobSpec, JobState

AnswerT = TypeVar("AnswerT", bound=Answer)
TIMEOUT_S = 30.0
_PAGE = 200
_ACTIVE = [state.value for state in JobState if state.value not in ENDED]
INVALID_ID = 422
"""The gateway's answer about an id that no job can have, as labels and names of objects give."""
_LATER = frozenset({401, 408, 425, 429})


class GatewayError(Exception):
    """The gateway refused a request; `status` is HTTP's."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Away(GatewayError):
    """The gateway is away, busy, or does not know the token (yet): try again later."""


class Gateway:
    """The calls that the processes beside Kubernetes make. Any thread may call."""

    def __init__(self, url: str, token: str, authority: Path | None = None) -> None:
        """`authority`: a file of CA certificates that signed the gateway's."""
        trusted = True if authority is None else ssl.create_default_context(cafile=str(authority))
        self._http = httpx.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {token}"},
            timeout=TIMEOUT_S,
            verify=trusted,
            limits=httpx.Limits(max_connections=32),
        )

    def submit(self, spec: JobSpec, key: str) -> Job:
        """Submit a job; the same key gives the same job. Raises GatewayError."""
        answer = self._ask(
            "POST", "/v1/training-jobs", json=spec.data(), headers={"Idempotency-Key": key}
        )
        return _read(Job, answer)

    def job(self, job_id: str) -> Job | None:
        """One job; None: the gateway knows no such job, or no job can have this id.

        Raises GatewayError.
        """
        try:
            return _read(Job, self._ask("GET", f"/v1/training-jobs/{job_id}"))
        except GatewayError as error:
            if error.status in {404, INVALID_ID}:
                return None
            raise

    def active_jobs(self, user: str | None = None) -> Iterator[JobSummary]:
        """The jobs of a user (default: of all) that have not ended, page by page.

        Raises GatewayError.
        """
        query: dict[str, Any] = {"state": _ACTIVE, "limit": _PAGE}
        if user is not None:
            query["user"] = user
        while True:
            page = _read(JobPage, self._ask("GET", "/v1/training-jobs", params=query))
            yield from page.jobs
            if page.cursor is None:
                return
            query["cursor"] = page.cursor

    def cancel(self, job_id: str) -> bool:
        """Cancel a job, unless it has ended; false: it is not known. Raises GatewayError."""
        return self._tolerating("POST", f"/v1/training-jobs/{job_id}/cancel")

    def prioritize(self, job_id: str, priority: int) -> None:
        """Change a job's priority, unless it has ended. Raises GatewayError."""
        path = f"/v1/training-jobs/{job_id}/priority"
        self._tolerating("POST", path, json={"priority": priority})

    def statuses(self) -> dict[str, str]:
        """The status of each node by its id. Raises GatewayError."""
        found: dict[str, str] = {}
        query: dict[str, Any] = {}
        while True:
            page = _read(NodeList, self._ask("GET", "/v1/nodes", params=query))
            found |= {node.node_id: node.status for node in page.nodes}
            if page.cursor is None:
                return found
            query["cursor"] = page.cursor

    def drain(self, node_id: str, *, on: bool, move_jobs: bool, reason: str) -> None:
        """Drain a node, or end its drain. Raises GatewayError."""
        body = {"drain": on, "move_jobs": move_jobs, "reason": reason}
        self._ask("POST", f"/v1/nodes/{node_id}/drain", json=body)

    def _tolerating(self, method: str, path: str, **more: Any) -> bool:
        """Whether the gateway knows the job. One that has ended is left as it is."""
        try:
            self._ask(method, path, **more)
        except GatewayError as error:
            if error.status not in {404, 409}:
                raise
            return error.status == 409
        return True

    def _ask(self, method: str, path: str, **more: Any) -> bytes:
        try:
            answer = self._http.request(method, path, **more)
        except httpx.HTTPError as error:
            raise Away(0, f"the gateway is away: {type(error).__name__}") from None
        if answer.is_success:
            return answer.content
        kind = Away if answer.status_code in _LATER or answer.status_code >= 500 else GatewayError
        raise kind(answer.status_code, _detail(answer))


def _read(model: type[AnswerT], raw: bytes) -> AnswerT:
    """An answer, without the fields that a later gateway adds."""
    return model.model_validate_json(raw, extra="ignore")


def _detail(answer: httpx.Response) -> str:
    try:
        problem = answer.json()
        errors = [f"{item['field']}: {item['message']}" for item in problem.get("errors", ())]
        return "; ".join(errors) or str(problem["detail"])
    except (ValueError, KeyError, TypeError, ValidationError):
        return f"HTTP {answer.status_code}"
