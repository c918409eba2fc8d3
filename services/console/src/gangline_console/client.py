"""The gateway's REST with one user's token; answers are the models of `gangline_schemas.api`."""

from __future__ import annotations

import asyncio
import hashlib
import ssl
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import aiohttp
from pydantic import ValidationError
from yarl import URL

from gangline_schemas.api.base import parse
from gangline_schemas.api.cluster import Whoami
from gangline_schemas.api.problem import Problem
from gangline_schemas.base import FieldError

AnswerT = TypeVar("AnswerT")
Value = str | int | float | bool
Query = Mapping[str, Value | Sequence[Value] | None]

_CONNECT_S, _ANSWER_S = 5.0, 30.0
_WHO_S, _WHO_MOST = 30.0, 2000


class GatewayAwayError(Exception):
    """The gateway does not answer, or not as one."""


class ApiError(Exception):
    """The gateway rejected a request: its problem document."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.status = problem.status
        self.detail = problem.detail
        self.errors: tuple[FieldError, ...] = problem.errors
        self.code = problem.type.removeprefix("urn:gangline:problem:")


@dataclass
class Gateway:
    """The connections to one gateway, kept open. Belongs to one event loop."""

    url: str
    ca: Path | None = None
    """Of the authority that signed the gateway's certificate; None: the system's."""
    again_s: tuple[float, ...] = (0.2, 0.4, 0.8, 1.6)
    """A GET that was above a limit is asked again after these times."""
    _session: aiohttp.ClientSession | None = field(default=None, repr=False)
    _known: dict[str, tuple[float, Whoami]] = field(default_factory=dict, repr=False)

    def api(self, token: str) -> Api:
        """REST with the token of one user."""
        return Api(self, token)

    async def who(self, token: str) -> Whoami:
        """Whose token it is; the answer is kept for 30 s. Other calls check the token each time."""
        digest = hashlib.sha256(token.encode()).hexdigest()
        now_s = time.monotonic()
        kept = self._known.get(digest)
        if kept is not None and now_s - kept[0] < _WHO_S:
            return kept[1]
        found = await self.api(token).get("/v1/whoami", Whoami)
        if len(self._known) >= _WHO_MOST:
            self._known.clear()
        self._known[digest] = (now_s, found)
        return found

    def _trust(self) -> ssl.SSLContext | bool:
        """How the gateway's certificate is proven."""
        return True if self.ca is None else ssl.create_default_context(cafile=str(self.ca))

    async def send(
        self,
        token: str,
        method: str,
        path: str,
        query: Query | None,
        body: Any,
        key: str = "",
    ) -> tuple[int, str]:
        """Status and text of an answer. Raises GatewayAwayError or ApiError.

        `key`: requests with the same one make one thing.
        """
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=20, ssl=self._trust()),
                timeout=aiohttp.ClientTimeout(sock_connect=_CONNECT_S, total=_ANSWER_S),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
        if key:
            headers["Idempotency-Key"] = key
        try:
            async with self._session.request(
                method,
                URL(f"{self.url}{path}", encoded=True),
                params=list(_pairs(query or {})),
                json=body,
                headers=headers,
                allow_redirects=False,
            ) as response:
                text = await response.text()
                if response.status >= 400:
                    raise _error(response.status, text)
                return response.status, text
        except (aiohttp.ClientError, TimeoutError) as error:
            raise GatewayAwayError(
                f"the gateway does not answer ({type(error).__name__})"
            ) from None


@dataclass(frozen=True)
class Api:
    """REST of one user, by paths of the gateway.

    Each call raises ApiError or GatewayAwayError.
    """

    gateway: Gateway
    token: str = field(repr=False)

    async def get(self, path: str, kind: type[AnswerT], query: Query | None = None) -> AnswerT:
        """The answer to a GET. Of the query, None and empty lists are left out."""
        for wait_s in self.gateway.again_s:
            try:
                _, text = await self.gateway.send(self.token, "GET", path, query, None)
            except ApiError as error:  # parts of a page come at once, and such limits end soon
                if error.status != 429 and error.code != "history-busy":
                    raise
                await asyncio.sleep(wait_s)
            else:
                return _read(kind, text)
        _, text = await self.gateway.send(self.token, "GET", path, query, None)
        return _read(kind, text)

    async def part(
        self, path: str, kind: type[AnswerT], query: Query | None = None
    ) -> AnswerT | None:
        """The answer to a GET for one part of a page; None while its source is away or busy."""
        try:
            return await self.get(path, kind, query)
        except GatewayAwayError:
            return None
        except ApiError as error:
            if error.status not in {429, 503}:
                raise
            return None

    async def post(
        self,
        path: str,
        kind: type[AnswerT],
        body: Any = None,
        query: Query | None = None,
        key: str = "",
    ) -> AnswerT:
        """The answer to a POST; `body` is JSON, `key` an idempotency key."""
        _, text = await self.gateway.send(self.token, "POST", path, query, body, key)
        return _read(kind, text)


def job_path(job_id: str) -> str:
    """REST's path of a job, whatever the id is."""
    return f"/v1/training-jobs/{quote(job_id, safe='')}"


def _read(kind: type[AnswerT], text: str) -> AnswerT:
    try:
        return parse(kind, text)
    except ValidationError as error:
        raise GatewayAwayError(
            f"the gateway's answer is no {getattr(kind, '__name__', kind)}: "
            f"{error.error_count()} fields differ"
        ) from None


def _pairs(query: Query) -> Iterable[tuple[str, str]]:
    for name, value in query.items():
        values = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
        for item in values:
            if item is not None:
                yield name, str(item).lower() if isinstance(item, bool) else str(item)


def _error(status: int, text: str) -> Exception:
    try:
        return ApiError(Problem.model_validate_json(text))
    except ValidationError:
        return GatewayAwayError(f"the gateway answered {status} without a reason")
