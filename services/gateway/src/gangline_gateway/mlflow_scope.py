"""The requests to MLflow that a job's token allows: its own run, and runs that it makes. Pure.

Ids of a job's runs and logged models begin with the same digits (`family_of`), so a request alone
shows whether it stays within the job. It is written again from the parts that were checked: MLflow
never sees a spelling that was read in another way here.

New runs become children of the job's run, and searches find the job's own alone. Experiments are
the team's: a program may choose one, or make one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, urlencode

from pydantic_core import from_json, to_json

from gangline_gateway.mlflow_routes import Refused, has_dots
from gangline_schemas.mlflow_workspace import (
    ATTEMPT_TAG,
    JOB_TAG,
    PARENT_TAG,
    family_of,
    mlflow_run_id,
)

_RUN, _MODEL = re.compile(r"[0-9a-f]{32}"), re.compile(r"m-[0-9a-f]{32}")
_RUN_IDS = frozenset({"run_id", "run_uuid", "source_run_id"})
_PLATFORM = "gangline."
_API = re.compile(r"/api/[23]\.0/mlflow/(.+)")
_MODEL_ROUTE = re.compile(r"logged-models/(m-[0-9a-f]{32})(/params|/tags)?")
_ARTIFACTS = "/api/2.0/mlflow-artifacts/artifacts"
_DIRECT = re.compile(r"/api/2\.0/mlflow-artifacts/(presigned|mpu/(?:create|complete|abort))/(.+)")
_UPLOAD = frozenset({"path", "num_parts", "upload_id", "parts"})
_ARTIFACT = re.compile(
    r"(?:workspaces/([a-z0-9-]+)/)?[0-9]+/(?:([0-9a-f]{32})|models/(m-[0-9a-f]{32}))/artifacts(/.+)?"
)
_GETS: Mapping[str, frozenset[str]] = {
    "server-info": frozenset(),
    "experiments/get": frozenset({"experiment_id"}),
    "experiments/get-by-name": frozenset({"experiment_name"}),
    "runs/get": frozenset({"run_id", "run_uuid"}),
    "artifacts/list": frozenset({"run_id", "run_uuid", "path", "page_token"}),
    "metrics/get-history": frozenset(
        {"run_id", "run_uuid", "metric_key", "max_results", "page_token"}
    ),
    "model-versions/search": frozenset({"filter", "max_results", "order_by", "page_token"}),
}
_METRIC = frozenset(
    {"key", "value", "timestamp", "step", "model_id", "dataset_name", "dataset_digest"}
)
_OF_RUN = frozenset({"run_id", "run_uuid"})
_POSTS: Mapping[str, frozenset[str]] = {
    "experiments/create": frozenset({"name", "tags"}),
    "runs/create": frozenset({"experiment_id", "user_id", "run_name", "start_time", "tags"}),
    "runs/update": _OF_RUN | {"status", "end_time", "run_name"},
    "runs/log-metric": _OF_RUN | _METRIC,
    "runs/log-batch": frozenset({"run_id", "metrics", "params", "tags"}),
    "runs/log-parameter": _OF_RUN | {"key", "value"},
    "runs/log-inputs": frozenset({"run_id", "datasets", "models"}),
    "runs/outputs": frozenset({"run_id", "models"}),
    "runs/log-model": frozenset({"run_id", "model_json"}),
    "runs/set-tag": _OF_RUN | {"key", "value"},
    "runs/delete-tag": frozenset({"run_id", "key"}),
    "runs/search": frozenset(
        {"experiment_ids", "filter", "run_view_type", "max_results", "order_by", "page_token"}
    ),
    "logged-models": frozenset(
        {"experiment_id", "name", "model_type", "source_run_id", "params", "tags"}
    ),
    "registered-models/create": frozenset({"name", "tags", "description"}),
    "model-versions/create": frozenset(
        {"name", "source", "run_id", "run_link", "tags", "description"}
    ),
    "logged-models/search": frozenset(
        {"experiment_ids", "filter", "max_results", "order_by", "page_token"}
    ),
}
_OF_MODEL: Mapping[tuple[str, str], frozenset[str]] = {
    ("GET", ""): frozenset(),
    ("PATCH", ""): frozenset({"model_id", "status"}),
    ("POST", "/params"): frozenset({"model_id", "params"}),
    ("PATCH", "/tags"): frozenset({"model_id", "tags"}),
}
_SOURCE = re.compile(r"(?:runs:/([0-9a-f]{32})/.+|mlflow-artifacts:/(?![/])(.+))")
_MAKES = frozenset({"runs/create", "logged-models"})
_TAGS_ONE = frozenset({"runs/set-tag", "runs/delete-tag"})


@dataclass(frozen=True, slots=True)
class JobScope:
    """An attempt that runs now, and its team's workspace."""

    job_id: str
    attempt: int
    workspace: str

    def owns_run(self, run_id: object) -> bool:
        """Whether it is the job's run, or one that the job made."""
        return self._owns(run_id, _RUN, "")

    def owns_model(self, model_id: object) -> bool:
        """Whether the job made this logged model."""
        return self._owns(model_id, _MODEL, "m-")

    def _owns(self, value: object, shape: re.Pattern[str], prefix: str) -> bool:
        beginning = prefix + family_of(self.job_id)
        return (
            isinstance(value, str)
            and shape.fullmatch(value) is not None
            and value.startswith(beginning)
        )


@dataclass(frozen=True, slots=True)
class Narrowed:
    """A request that stays within a job. Path and query are quoted."""

    path: str
    query: str = ""
    rewrite: Callable[[bytes], bytes] | None = None
    """Makes the body that MLflow gets; raises Refused. None: the body is a file, or empty."""
    sends_file: bool = False


def narrow(method: str, path: str, query: str, job: JobScope) -> Narrowed:
    """The request as MLflow gets it. Raises Refused."""
    if has_dots(f"{path}?{query}"):
        raise _malformed("a path must not hold the parts . and ..")
    if path.startswith(_ARTIFACTS):
        return _artifact(method, path, query, job)
    if (direct := _DIRECT.fullmatch(path)) is not None and not query:
        return _direct(method, direct[1], direct[2], job)
    if (method, path) == ("GET", "/version"):
        return Narrowed(path)
    found = _API.fullmatch(path)
    route = found[1] if found is not None else ""
    if method == "GET" and route in _GETS:
        return Narrowed(path, _asked(route, query, job))
    fields = _POSTS.get(route) if method == "POST" else None
    model = _MODEL_ROUTE.fullmatch(route)
    if model is not None:
        fields = _OF_MODEL.get((method, model[2] or ""))
        if fields is not None and not job.owns_model(model[1]):
            raise _another()
        if fields is not None and method == "GET":
            return Narrowed(path)
    if fields is None or query:
        raise _forbidden("the token of a job does not allow this request")
    known = fields
    return Narrowed(path, rewrite=lambda body: _rewritten(route, body, known, job))


def _artifact(method: str, path: str, query: str, job: JobScope) -> Narrowed:
    if method == "GET" and path == _ARTIFACTS:
        asked = _pairs(query, frozenset({"path"}))
        _check_artifact(asked.get("path", ""), job)
        return Narrowed(path, urlencode(asked))
    if method not in {"GET", "PUT"} or query:
        raise _forbidden("the token of a job does not allow this request")
    _check_artifact(path.removeprefix(f"{_ARTIFACTS}/"), job)
    return Narrowed(quote(path), sends_file=method == "PUT")


def _direct(method: str, route: str, place: str, job: JobScope) -> Narrowed:
    """Requests for presigned URLs."""
    _check_artifact(place, job)
    path = quote(f"/api/2.0/mlflow-artifacts/{route}/{place}")
    if route == "presigned" and method == "GET":
        return Narrowed(path)
    if route == "presigned" or method != "POST":
        raise _forbidden("the token of a job does not allow this request")
    return Narrowed(path, rewrite=lambda body: _rewritten(route, body, _UPLOAD, job))


def _check_artifact(path: str, job: JobScope) -> None:
    found = _ARTIFACT.fullmatch(path)
    if found is None or found[1] not in {None, job.workspace}:
        raise _another()
    if not (job.owns_run(found[2]) or job.owns_model(found[3])):
        raise _another()


def _asked(route: str, query: str, job: JobScope) -> str:
    known = _GETS[route]
    asked = _pairs(query, known)
    for name in asked.keys() & _RUN_IDS:
        if not job.owns_run(asked[name]):
            raise _another()
    if "run_id" in known and not asked.keys() & _RUN_IDS:
        raise _malformed("run_id is missing")
    if route.endswith("/search"):
        asked["filter"] = _own_filter(asked.get("filter"), job)
    return urlencode(asked)


def _pairs(query: str, known: frozenset[str]) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise _malformed("the query cannot be read") from None
    asked = dict(pairs)
    if len(asked) != len(pairs) or not asked.keys() <= known:
        raise _malformed(f"the query may hold these once: {', '.join(sorted(known))}")
    return asked


def _rewritten(route: str, body: bytes, known: frozenset[str], job: JobScope) -> bytes:
    try:
        asked = from_json(body, allow_inf_nan=False)
    except ValueError:
        raise _malformed("the body must be JSON") from None
    if not isinstance(asked, dict) or not asked.keys() <= known:
        raise _malformed(f"the body may hold: {', '.join(sorted(known))}")
    _check_ids(asked, job)
    if route in _MAKES:
        asked["tags"] = _own_tags(asked.get("tags"), job)
        if route == "logged-models" and not job.owns_run(asked.get("source_run_id")):
            raise _forbidden("source_run_id: must be a run of this job")
    elif route == "model-versions/create":
        _check_source(asked, job)
        asked["tags"] = _job_tags(asked.get("tags"), job)
    elif route.endswith("/search"):
        asked["filter"] = _own_filter(asked.get("filter"), job)
    elif route in _TAGS_ONE:
        _check_tag(asked.get("key"), asked.get("value", ""), job)
    elif "tags" in asked:
        for key, value in _tags(asked["tags"]):
            _check_tag(key, value, job)
    return to_json(asked)


def _check_ids(value: object, job: JobScope) -> None:
    """Refuse runs and models of others, wherever they stand.

    MLflow would take `runId` for `run_id`, so such spellings are refused too.
    """
    if isinstance(value, list):
        for item in value:
            _check_ids(item, job)
    elif isinstance(value, dict):
        for name, item in value.items():
            if not name.islower():
                raise _malformed("names of fields are written in small letters and _")
            if name in _RUN_IDS and not job.owns_run(item):
                raise _another()
            if name == "model_id" and not job.owns_model(item):
                raise _another()
            _check_ids(item, job)


def _tags(value: object) -> list[tuple[str, str]]:
    if not isinstance(value, list):
        raise _malformed("tags: must be a list")
    found = []
    for tag in value:
        if not isinstance(tag, dict) or not tag.keys() <= {"key", "value"}:
            raise _malformed("tags: each has a key and a value")
        key, text = tag.get("key"), tag.get("value", "")
        if not isinstance(key, str) or not isinstance(text, str):
            raise _malformed("tags: keys and values are texts")
        found.append((key, text))
    return found


def _own_tags(value: object, job: JobScope) -> list[dict[str, str]]:
    """The tags of what a job makes: its own, and those that make it the job's."""
    parent = {PARENT_TAG: mlflow_run_id(job.job_id)}
    tags = parent | dict(_tags(value) if value is not None else [])
    if not job.owns_run(tags[PARENT_TAG]):
        raise _forbidden(f"the tag {PARENT_TAG} must be a run of this job")
    return _job_tags([{"key": key, "value": text} for key, text in tags.items()], job)


def _job_tags(value: object, job: JobScope) -> list[dict[str, str]]:
    """These tags, and those that name the job, which it does not choose."""
    tags = dict(_tags(value)) if value is not None else {}
    tags = {key: text for key, text in tags.items() if not key.startswith(_PLATFORM)}
    tags |= {JOB_TAG: job.job_id, ATTEMPT_TAG: str(job.attempt)}
    return [{"key": key, "value": text} for key, text in tags.items()]


def _check_source(asked: Mapping[str, object], job: JobScope) -> None:
    """A new version is made of artifacts of the job's runs."""
    source = asked.get("source")
    found = _SOURCE.fullmatch(source) if isinstance(source, str) else None
    if found is None or not job.owns_run(asked.get("run_id")) or has_dots(str(source)):
        raise _forbidden("source: must be artifacts of a run of this job, and run_id that run")
    if found[2] is not None:
        _check_artifact(found[2], job)
    elif not job.owns_run(found[1]):
        raise _another()


def _check_tag(key: object, value: object, job: JobScope) -> None:
    if not isinstance(key, str) or not isinstance(value, str):
        raise _malformed("key and value of a tag are texts")
    if key.startswith(_PLATFORM):
        raise _forbidden(f"tags that begin with {_PLATFORM} are set by the platform alone")
    if key == PARENT_TAG and not job.owns_run(value):
        raise _forbidden(f"the tag {PARENT_TAG} must be a run of this job")


def _own_filter(value: object, job: JobScope) -> str:
    """Ours comes first: what follows can only narrow it, as the language has AND alone."""
    own = f"tags.`{JOB_TAG}` = '{job.job_id}'"
    if value is None or value == "":
        return own
    if not isinstance(value, str):
        raise _malformed("filter: must be a text")
    return f"{own} AND {value}"


def _malformed(message: str) -> Refused:
    return Refused(400, "INVALID_PARAMETER_VALUE", message)


def _forbidden(message: str) -> Refused:
    return Refused(403, "PERMISSION_DENIED", message)


def _another() -> Refused:
    return _forbidden("the token of a job is for its own runs and models only")
