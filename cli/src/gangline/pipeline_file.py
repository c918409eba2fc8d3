"""The pipeline file as a checked value, with the working directories of its steps packed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gangline.errors import CliError, ExitCode
from gangline.job_file import Bundle, NamedFile, line_in_named, pack, read_fields
from gangline_schemas.base import FieldError, field_errors
from gangline_schemas.job_file import JobDocument
from gangline_schemas.pipeline_checks import pipeline_problems
from gangline_schemas.pipeline_file import PipelineSpec, named_in_file

_HINT = "the fields are described in docs/reference/pipeline-file.md"
_SHOWN = 20


@dataclass(frozen=True)
class PipelineFile:
    """A pipeline file as read: its spec, the line of each field, and what must be uploaded."""

    spec: PipelineSpec
    document: JobDocument
    bundles: tuple[Bundle, ...]
    where: str
    files: Mapping[str, NamedFile]

    def located(self, error: CliError) -> CliError:
        """The gateway's error with the file and the line, if it begins with a field."""
        field = named_in_file(error.message.partition(":")[0])
        line = self.document.line(field)
        place = line_in_named(self.files, field) or (line and f"{self.where}:{line}")
        if place is None:
            return error
        message = f"{place}: {error.message}"
        return CliError(message, error.hint, error.code, status=error.status)


def read_pipeline_file(path: Path) -> PipelineFile:
    """Read and check a pipeline file; a step's `job` may name a job file beside it.

    Raises CliError that names the file, the lines and the fields.
    """
    document = read_fields(path, _HINT)
    bundles: dict[str, Bundle] = {}
    files: dict[str, NamedFile] = {}
    steps = document.content.get("steps")
    for name, step in steps.items() if isinstance(steps, dict) else ():
        if isinstance(step, dict):
            _complete(path, document, name, step, bundles, files)
    try:
        spec = PipelineSpec.model_validate(document.content)
    except ValidationError as error:
        found = field_errors(error, model=PipelineSpec)
        raise _wrong(str(path), document, found, files) from None
    wrong = pipeline_problems(spec)
    if wrong:
        raise _wrong(str(path), document, wrong, files)
    return PipelineFile(spec, document, tuple(bundles.values()), str(path), files)


def _complete(
    path: Path,
    document: JobDocument,
    name: str,
    step: dict[str, Any],
    bundles: dict[str, Bundle],
    files: dict[str, NamedFile],
) -> None:
    """Put the job of a file, and the digest of the packed workdir, into a step."""
    job, folder = step.get("job"), path.parent
    if isinstance(job, str):
        file = folder / job
        if not file.is_file():
            wrong = FieldError(field=f"steps.{name}.job", message=f"there is no file {job}")
            raise _wrong(str(path), document, [wrong], files)
        named = files[f"steps.{name}.job"] = NamedFile(file, read_fields(file))
        job, folder = dict(named.document.content), file.parent
        job.pop("name", None)
        step["job"] = job
    if not isinstance(job, dict) or not isinstance(job.get("workdir"), str):
        return
    workdir = (folder / job["workdir"]).resolve()
    if not workdir.is_dir():
        wrong = FieldError(
            field=f"steps.{name}.job.workdir",
            message=f"there is no folder {job['workdir']}; give one relative to the file",
        )
        raise _wrong(str(path), document, [wrong], files)
    key = str(workdir)
    if key not in bundles:
        bundles[key] = pack(workdir)
    job["code_bundle"] = bundles[key].digest


def _wrong(
    where: str,
    document: JobDocument,
    errors: Iterable[FieldError],
    files: Mapping[str, NamedFile],
) -> CliError:
    found = [*errors]
    lines = []
    for item in found[:_SHOWN]:
        field = named_in_file(item.field)
        line = document.line(field)
        own = f"{where}:{line}" if line is not None else where
        place = line_in_named(files, field) or own
        lines.append(f"  {place}: {field}: {item.message}")
    if len(found) > _SHOWN:
        lines.append(f"  and {len(found) - _SHOWN} more")
    text = f"{where} is no valid pipeline file:\n" + "\n".join(lines)
    return CliError(text, _HINT, ExitCode.USAGE)
