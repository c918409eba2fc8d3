"""Ids of new runs and logged models begin as those of the job that makes them.

MLflow makes each id with `uuid.uuid4()` in the middle of its methods, so its module gets a `uuid`
of ours. See `gangline_schemas.mlflow_workspace`.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from mlflow.store.tracking import sqlalchemy_store

from gangline_schemas.mlflow_workspace import FAMILY_CHARS, JOB_TAG, family_of

_beginning: ContextVar[str] = ContextVar("beginning", default="")
_RUN = re.compile(r"[0-9a-f]{32}")


class _Uuid:
    """The module `uuid`, whose new ids may have a beginning."""

    def __getattr__(self, name: str) -> Any:
        return getattr(uuid, name)

    @staticmethod
    def uuid4() -> uuid.UUID:
        beginning = _beginning.get()
        return uuid.UUID(beginning + uuid.uuid4().hex[len(beginning) :])


sqlalchemy_store.uuid = _Uuid()


@contextmanager
def ids_of_job(tags: Iterable[Any] | None) -> Iterator[None]:
    """Within the block, ids begin as those of the job that the tags name, if they name one."""
    job_id = next((tag.value for tag in tags or () if tag.key == JOB_TAG), None)
    with _ids(family_of(job_id) if job_id else ""):
        yield


@contextmanager
def ids_of_run(run_id: str | None) -> Iterator[None]:
    """Within the block, ids begin as that of the run."""
    is_run = run_id is not None and _RUN.fullmatch(run_id) is not None
    with _ids(run_id[:FAMILY_CHARS] if run_id is not None and is_run else ""):
        yield


@contextmanager
def _ids(beginning: str) -> Iterator[None]:
    token = _beginning.set(beginning)
    try:
        yield
    finally:
        _beginning.reset(token)
