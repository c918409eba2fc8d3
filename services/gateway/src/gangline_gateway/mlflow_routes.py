"""Which requests reach MLflow, and in which team's workspace. Pure.

MLflow keeps workspaces apart, but any caller may name any workspace, and some routes know no
workspaces. So the gateway decides both: a route that is not listed here is refused, also one that
a later release of MLflow adds.

`/mlflow/...` is the workspace of a token's only team, `/mlflow/teams/TEAM/...` that of any team of
the token.
"""

from __future__ import annotations

import json
import re
import unicodedata
from dataclasses import dataclass
from urllib.parse import unquote

from gangline_gateway.problems import forbidden
from gangline_schemas.access import TokenScope
from gangline_schemas.mlflow_workspace import team_of, workspace_of
from gangline_service.tokens import Principal, Role

PREFIX = "/mlflow"
SERVED = frozenset(
    {
        "artifacts", "datasets", "experiments", "get-online-trace-details", "get-trace-artifact",
        "issues", "label-schemas", "logged-models", "metrics", "model-versions",
        "registered-models", "review-queues", "runs", "server-info", "traces", "unified-traces",
        "upload-artifact",
    }
)  # fmt: skip
"""Families of routes below /api/N.N/mlflow/ that keep teams apart."""
_API = re.compile(r"^/(?:ajax-)?api/\d\.\d/(?:mlflow/([a-z-]+)|(mlflow-artifacts))(?:/|$)")
_PAGES = re.compile(r"^/$|^/(version|graphql|get-artifact|model-versions/get-artifact)$")
_FILES = re.compile(r"^/static-files/")
_TRACES = re.compile(r"^/v1/traces$")
_TEAM = re.compile(r"^/teams/([a-z0-9-]{1,63})(/.*)$")
_MAKES_VERSION = re.compile(r"^/(?:ajax-)?api/\d\.\d/mlflow/model-versions/create$")
_BIG = re.compile(r"^/(?:ajax-)?api/\d\.\d/mlflow-artifacts/artifacts/")
_SEARCHES = re.compile(r"^/(?:ajax-)?api/\d\.\d/mlflow/[a-z-]+/search$")
_SOURCE = re.compile(r"(runs|models):/(?!/)")
_SLASHES = str.maketrans("\u2044\u2215\u29f5\u29f8\ufe68", "/////")
_MOST_QUOTED = 8
_PARTS = re.compile(r"[/\\?=&;]")


class Refused(Exception):
    """MLflow must not see the request. `code` is one of MLflow's error codes."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


@dataclass(frozen=True, slots=True)
class Passed:
    """A request that MLflow may answer."""

    workspace: str
    """The team's."""
    path: str
    """As MLflow knows it."""

    @property
    def makes_version(self) -> bool:
        """Whether `check_source` must see its body."""
        return _MAKES_VERSION.search(self.path) is not None


def is_mlflow(path: str) -> bool:
    """Whether a path of the gateway is MLflow's."""
    return path == PREFIX or path.startswith(f"{PREFIX}/")


def takes_files(path: str) -> bool:
    """Whether a path of the gateway takes bodies of any size."""
    return is_mlflow(path) and _BIG.search(_split(path.removeprefix(PREFIX))[1]) is not None


def check_scope(caller: Principal, method: str, path: str) -> None:
    """Raise a 403 problem when a token that may only read would change something."""
    inner = _split(path.removeprefix(PREFIX))[1]
    searches = method == "POST" and _SEARCHES.search(inner) is not None
    reads = method in {"GET", "HEAD"} or searches
    if not reads and not caller.scope.includes(TokenScope.SUBMIT):
        raise forbidden(f"this token has the scope {caller.scope}; this needs submit")


def enter(path: str, query: str, caller: Principal) -> Passed:
    """The way of a request. Raises Refused."""
    named, inner = _split(path.removeprefix(PREFIX))
    if "\ufffd" in path or has_dots(f"{path}?{query}"):
        raise Refused(
            400, "INVALID_PARAMETER_VALUE", "a path must be UTF-8 without the parts . and .."
        )
    if not _is_served(inner):
        raise Refused(403, "PERMISSION_DENIED", "this installation does not offer this route")
    return Passed(_workspace(named, caller), inner)


def job_path(path: str, workspace: str) -> str:
    """The path of a job's request as MLflow knows it. Raises Refused for another team's."""
    named, inner = _split(path.removeprefix(PREFIX))
    if named not in {None, team_of(workspace)}:
        raise Refused(403, "PERMISSION_DENIED", "the token does not belong to this team")
    return inner


def check_source(body: bytes, workspace: str) -> None:
    """Raise Refused unless a new model version is made of a run or model of the team.

    MLflow reads other sources with its own rights.
    """
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        asked = None
    source = asked.get("source") if isinstance(asked, dict) else None
    own = f"mlflow-artifacts:/workspaces/{workspace}/"
    if not isinstance(source, str) or not (_SOURCE.match(source) or source.startswith(own)):
        raise Refused(
            400,
            "INVALID_PARAMETER_VALUE",
            "source: must be a run, model or artifact of this team, such as runs:/RUN/model",
        )
    if has_dots(source):
        raise Refused(400, "INVALID_PARAMETER_VALUE", "source: must not hold the parts . and ..")


def has_dots(text: str) -> bool:
    """Whether a part is . or .. however it is spelled, or a NUL stands in it.

    It may be quoted several times, or use characters that look like dots and slashes. A text that
    is quoted more often than any program does it counts as one that has dots.
    """
    for _ in range(_MOST_QUOTED):
        if (plain := unquote(text)) == text:
            break
        text = plain
    else:
        return True
    text = unicodedata.normalize("NFKC", text).translate(_SLASHES)
    return "\0" in text or any(part in {".", ".."} for part in _PARTS.split(text))


def _split(path: str) -> tuple[str | None, str]:
    found = _TEAM.match(path)
    return (found[1], found[2]) if found is not None else (None, path)


def _is_served(path: str) -> bool:
    found = _API.match(path)
    if found is not None:
        return found[2] is not None or found[1] in SERVED
    return any(pattern.search(path) for pattern in (_PAGES, _FILES, _TRACES))


def _workspace(named: str | None, caller: Principal) -> str:
    if caller.role is Role.SERVICE:
        raise Refused(403, "PERMISSION_DENIED", "give a user's token; this one is a service's")
    if named is None:
        if len(caller.teams) != 1:
            raise Refused(
                403,
                "PERMISSION_DENIED",
                "the token is not of exactly one team: use .../mlflow/teams/TEAM as tracking URI",
            )
        (named,) = caller.teams
    if not caller.reads(named):
        raise Refused(403, "PERMISSION_DENIED", "the token does not belong to this team")
    try:
        return workspace_of(named)
    except ValueError as error:
        raise Refused(403, "PERMISSION_DENIED", str(error)) from None
