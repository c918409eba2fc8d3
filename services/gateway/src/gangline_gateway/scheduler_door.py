"""Asking the scheduler why a job waits and what a job would do.

Of several schedulers one leads and the others stand by: the one that answered last is asked first,
then the others, within `ANSWER_S` in all. Few ask at once, so that a slow scheduler holds no
threads that other routes need. Who gets no answer is told so by AwayError. By https:// a scheduler
is asked only after its certificate was checked: the token is for nobody else.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from typing import TypeVar

import structlog
import urllib3
from pydantic import ValidationError
from urllib3.exceptions import HTTPError

from gangline_gateway.problems import ProblemError
from gangline_schemas.api.questions import JobExplained, WhatIfAnswer
from gangline_schemas.base import FieldError, Model
from gangline_schemas.job import JobSpec

log = structlog.get_logger(__name__)
ModelT = TypeVar("ModelT", bound=Model)

ANSWER_S = 2.0
AT_ONCE = 4
ANSWER_LIMIT_BYTES = 4 << 20
_NOT_TRUSTED = (
    "the scheduler's certificate is not accepted; an operator can name who signed it in "
    "GANGLINE_SCHEDULER_TLS_CA"
)


class AwayError(Exception):
    """No scheduler answered; the message says why."""


class AuthorityFileError(Exception):
    """The file of `ca` cannot be used; the message names the setting and says why."""


class _Refusal(Model):
    code: str = ""
    detail: str = ""
    errors: tuple[FieldError, ...] = ()


class SchedulerDoor:
    """The doors of the schedulers of one installation. May be used from any thread.

    `ca`: who signed their certificates; without it the system's authorities are trusted.
    Raises AuthorityFileError.
    """

    def __init__(
        self,
        urls: Sequence[str],
        token: str,
        *,
        ca: Path | None = None,
        answer_s: float = ANSWER_S,
    ) -> None:
        self._urls = list(urls)
        self._answer_s = answer_s
        self._headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
        self._pool = urllib3.PoolManager(
            num_pools=max(1, len(urls)), maxsize=AT_ONCE, ssl_context=_trusting(ca)
        )
        self._slots = threading.BoundedSemaphore(AT_ONCE)

    def explain(self, job_id: str) -> JobExplained | None:
        """Why a job waits; None when the scheduler knows of none that waits. Raises AwayError."""
        return self._ask("GET", f"/v1/explain/{job_id}", None, JobExplained)

    def what_if(self, spec: JobSpec) -> WhatIfAnswer:
        """What the job would do. Raises AwayError, and a 422 problem for a wrong spec."""
        found = self._ask("POST", "/v1/what-if", spec.encode(), WhatIfAnswer)
        if found is None:
            raise AwayError("the scheduler is older than this gateway")
        return found

    def _ask(self, method: str, path: str, body: bytes | None, kind: type[ModelT]) -> ModelT | None:
        if not self._urls:
            raise AwayError("no scheduler can be asked: set GANGLINE_SCHEDULER_URLS")
        if not self._slots.acquire(blocking=False):
            raise AwayError("too many questions to the scheduler at once")
        try:
            return self._ask_each(method, path, body, kind)
        finally:
            self._slots.release()

    def _ask_each(
        self, method: str, path: str, body: bytes | None, kind: type[ModelT]
    ) -> ModelT | None:
        ends = time.monotonic() + self._answer_s
        why = "the scheduler does not answer"
        for url in tuple(self._urls):
            left_s = ends - time.monotonic()
            if left_s <= 0:
                break
            try:
                status, content = self._call(method, f"{url}{path}", body, left_s)
                if status == HTTPStatus.SERVICE_UNAVAILABLE:
                    refusal = _Refusal.decode(content or b"{}")
                    why = why if refusal.code == "stands-by" else refusal.detail or why
                    continue
                found = _read(status, content, kind)
            except (HTTPError, OSError, ValidationError, AwayError) as error:
                refused = _refused_certificate(error)
                log.warning(
                    "scheduler did not answer", url=url, error=refused or type(error).__name__
                )
                why = why if refused is None else _NOT_TRUSTED
                continue
            self._prefer(url)
            return found
        raise AwayError(why)

    def _call(
        self, method: str, url: str, body: bytes | None, timeout_s: float
    ) -> tuple[int, bytes]:
        answer = self._pool.request(
            method,
            url,
            body=body,
            headers=self._headers,
            timeout=urllib3.Timeout(total=timeout_s),
            retries=False,
            redirect=False,
            preload_content=False,
        )
        try:
            return answer.status, answer.read(ANSWER_LIMIT_BYTES)
        finally:
            answer.release_conn()

    def _prefer(self, url: str) -> None:
        if self._urls[0] != url:
            self._urls = [url, *(other for other in self._urls if other != url)]


def _trusting(ca: Path | None) -> ssl.SSLContext | None:
    """What checks a certificate and its name; None: the client's own, over the system's store."""
    if ca is None:
        return None
    try:
        return ssl.create_default_context(cafile=ca)
    except OSError as error:
        raise AuthorityFileError(
            f"GANGLINE_SCHEDULER_TLS_CA cannot be used ({error.strerror or error}): name a PEM "
            "file of certificates that this process may read"
        ) from None


def _refused_certificate(error: BaseException) -> str | None:
    """Why a certificate was not accepted, without its content; None: it is another error."""
    causes = (error, *error.args, error.__cause__, error.__context__)
    found = next((one for one in causes if isinstance(one, ssl.SSLCertVerificationError)), None)
    return None if found is None else found.verify_message


def _read(status: int, content: bytes, kind: type[ModelT]) -> ModelT | None:
    if status == HTTPStatus.OK:
        return kind.decode(content)
    refusal = _Refusal.decode(content or b"{}")
    if status == HTTPStatus.NOT_FOUND and refusal.code == "not-found":
        return None
    if status == HTTPStatus.UNPROCESSABLE_ENTITY:
        raise ProblemError(422, "invalid", refusal.detail, errors=refusal.errors)
    raise AwayError(f"the scheduler answered with status {status}")
