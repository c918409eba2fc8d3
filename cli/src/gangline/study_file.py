"""The study file as a spec, with the working directory of its job packed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gangline.errors import CliError, ExitCode
from gangline.job_file import Bundle, NamedFile, line_in_named, pack_workdir, read_fields
from gangline_schemas.base import WHOLE, FieldError, field_errors
from gangline_schemas.job_file import JobDocument
from gangline_schemas.study_file import StudySpec

_SHARED = ("team", "project")
_PLACE = re.compile(r"^([A-Za-z_][\w-]*(?:\.[^\s.:]+)*): ")
_KIND_AT = {"stopping": 1, "space": 2}
"""The place in an error's field of the kind, such as asha or float."""
_HINT = "the fields are described in docs/reference/study-file.md"


@dataclass(frozen=True)
class StudyFile:
    """A study file as read: its spec, and what of its job must be uploaded."""

    spec: StudySpec
    bundle: Bundle | None


def read_study_file(path: Path, overrides: Mapping[str, Any] | None = None) -> StudyFile:
    """Read and check a study file; pack the workdir of its job.

    `job` is a mapping of a job's fields, or the name of a job file beside the study file. Team and
    project are the job's where the study names none. `overrides` replaces fields at the top.
    Raises CliError that names the file, the line and the field.
    """
    document = read_fields(path)
    content = {**document.content, **(overrides or {})}
    bundle = None
    files: dict[str, NamedFile] = {}
    job = content.get("job")
    if isinstance(job, str):
        job_path = path.parent / job
        files["job"] = NamedFile(job_path, read_fields(job_path))
        content["job"] = dict(files["job"].document.content)
        bundle = pack_workdir(content["job"], job_path)
    elif isinstance(job, dict):
        content["job"] = dict(job)
        bundle = pack_workdir(content["job"], path)
    if isinstance(content.get("job"), dict):
        _share(content, content["job"])
    return StudyFile(check_study(content, str(path), document, files), bundle)


def _share(content: dict[str, Any], job: dict[str, Any]) -> None:
    for name in _SHARED:
        if name in job:
            content.setdefault(name, job[name])
    if job.get("team") is not None and "team" in content:
        job.setdefault("team", content["team"])


def check_study(
    content: Mapping[str, Any],
    where: str,
    document: JobDocument | None = None,
    files: Mapping[str, NamedFile] | None = None,
) -> StudySpec:
    """The spec of a mapping; `files` are those that it names.

    Raises CliError with a line for each wrong field.
    """
    try:
        return StudySpec.model_validate(content)
    except ValidationError as error:
        found = field_errors(error, model=StudySpec)
        lines = "\n".join(f"  {_sentence(each, document, files or {})}" for each in found)
        raise CliError(f"{where} is no valid study file:\n{lines}", _HINT, ExitCode.USAGE) from None


def _sentence(
    error: FieldError, document: JobDocument | None, files: Mapping[str, NamedFile]
) -> str:
    """`line 7: space.lr.low: ...`; a message about the whole file begins with the field."""
    message, field = error.message, _as_written(error.field)
    named = _PLACE.match(message)
    if named is not None:
        field = f"{field}.{named[1]}" if field else named[1]
        message = message[named.end() :]
    named_at = line_in_named(files, field)
    line = document.line(field) if document is not None else None
    if named_at is not None:
        place = f"{named_at}: "
    else:
        place = f"line {line}: " if line is not None else ""
    return f"{place}{field}: {message}" if field else f"{place}{message}"


def _as_written(field: str) -> str:
    """The field without the kinds of unions in it: `stopping.min_steps`; "" for the whole file."""
    if field == WHOLE:
        return ""
    parts = field.split(".")
    kind = _KIND_AT.get(parts[0])
    if kind is not None and len(parts) > kind:
        del parts[kind]
    return ".".join(parts)
