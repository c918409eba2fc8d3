"""The job file as a spec, with its working directory packed and its code named."""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import subprocess
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pathspec
import yaml
from pydantic import ValidationError

from gangline.errors import CliError, ExitCode
from gangline_schemas.base import field_errors
from gangline_schemas.job import DIFF_LIMIT_CHARS, JobSpec
from gangline_schemas.job_file import JobDocument, JobFileError, read_document
from gangline_schemas.yaml_core import load_yaml

MAX_BUNDLE_BYTES = 64 * 1024 * 1024
MAX_BUNDLE_FILES = 20_000
_ALWAYS_LEFT_OUT = (".git/", "__pycache__/", "*.pyc", ".venv/", "node_modules/")
_FIELDS = frozenset(JobSpec.model_fields) | {"checkpointPolicy", "codeRef", "dataSnapshot"}


@dataclass(frozen=True)
class NamedFile:
    """A job file that another file names."""

    path: Path
    document: JobDocument


def line_in_named(files: Mapping[str, NamedFile], field: str) -> str | None:
    """`job.yaml:4`, if a field lies in one of these files; they are by the field that names them.

    None: it does not, or that file has no line of it.
    """
    for name, file in files.items():
        if field.startswith(f"{name}."):
            line = file.document.line(field.removeprefix(f"{name}."))
            return None if line is None else f"{file.path}:{line}"
    return None


@dataclass(frozen=True)
class Bundle:
    """A packed working directory: the same files give the same bytes and so the same digest."""

    data: bytes
    digest: str
    files: int


@dataclass(frozen=True)
class JobFile:
    """A job file as read: its spec, and what of it must be uploaded."""

    spec: JobSpec
    bundle: Bundle | None


def read_job_file(path: Path, overrides: Mapping[str, Any] | None = None) -> JobFile:
    """Read and check a job file; pack its workdir; note the commit and diff of its checkout.

    `overrides` replaces fields by dotted name (resources.gpus). Raises CliError that names the
    file and the field.
    """
    content = read_fields(path).content
    apply_overrides(content, overrides or {})
    bundle = pack_workdir(content, path)
    return JobFile(check_spec(content, str(path)), bundle)


def pack_workdir(content: dict[str, Any], path: Path) -> Bundle | None:
    """Pack the workdir that a job of this file names; its digest, commit and diff go to `content`.

    None: it names none. Raises CliError.
    """
    workdir = content.get("workdir")
    if not isinstance(workdir, str):
        return None
    folder = (path.parent / workdir).resolve()
    if not folder.is_dir():
        raise CliError(
            f"{path}: workdir: there is no folder {workdir}",
            f"give a folder relative to {path.name}, or leave workdir out",
            ExitCode.USAGE,
        )
    bundle = pack(folder)
    content["code_bundle"] = bundle.digest
    content.update(_checkout(folder, content))
    return bundle


def read_overrides(settings: Sequence[str]) -> dict[str, Any]:
    """Texts of the form `field=value` (value in YAML) as fields by dotted name.

    Raises CliError for a text that is not so, or a field that no job file has.
    """
    found: dict[str, Any] = {}
    for setting in settings:
        field, given, value = setting.partition("=")
        top = field.split(".")[0]
        if not given or not field:
            raise CliError(
                f"--set {setting}: write it as field=value",
                "for example --set hyperparameters.lr=3e-4",
                ExitCode.USAGE,
            )
        if top not in _FIELDS:
            raise CliError(
                f"--set {setting}: a job file has no field {top}",
                f"did you mean --set hyperparameters.{setting}?",
                ExitCode.USAGE,
            )
        try:
            found[field] = load_yaml(value)
        except yaml.YAMLError:
            raise CliError(f"--set {setting}: not a YAML value", code=ExitCode.USAGE) from None
    return found


def apply_overrides(content: dict[str, Any], overrides: Mapping[str, Any]) -> None:
    """Replace fields by dotted name, in place. Raises CliError for a field below no mapping."""
    for field, value in overrides.items():
        *parents, last = field.split(".")
        inner = content
        for parent in parents:
            below = inner.setdefault(parent, {})
            if not isinstance(below, dict):
                raise CliError(f"{field}: {parent} is no mapping", code=ExitCode.USAGE)
            inner = below
        inner[last] = value


def check_spec(content: dict[str, Any], where: str) -> JobSpec:
    """The spec of a mapping. Raises CliError with a line for each bad field."""
    try:
        return JobSpec.model_validate(content)
    except ValidationError as error:
        lines = [f"  {item.field}: {item.message}" for item in field_errors(error, model=JobSpec)]
        raise CliError(
            f"{where} is no valid job file:\n" + "\n".join(lines),
            "the fields are described in docs/reference/job-file.md",
            ExitCode.USAGE,
        ) from None


def pack(folder: Path) -> Bundle:
    """Pack a folder as tar.gz without what .gitignore names, reproducibly.

    Raises CliError when it is too large; the message names the largest files.
    """
    sizes: dict[Path, int] = {}
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in _files(folder):
            try:
                sizes[path] = path.stat().st_size
                if len(sizes) > MAX_BUNDLE_FILES or sum(sizes.values()) > 4 * MAX_BUNDLE_BYTES:
                    raise _too_large(folder, sizes)
                _add(archive, path, path.relative_to(folder).as_posix())
            except OSError as error:  # or it became shorter meanwhile
                raise CliError(
                    f"workdir: cannot read {path}: {error.strerror or error}",
                    "name it in .gitignore, if the job does not need it",
                    ExitCode.USAGE,
                ) from None
    data = gzip.compress(raw.getvalue(), compresslevel=6, mtime=0)
    if len(data) > MAX_BUNDLE_BYTES:
        raise _too_large(folder, sizes)
    return Bundle(data, hashlib.sha256(data).hexdigest(), len(sizes))


def _add(archive: tarfile.TarFile, path: Path, name: str) -> None:
    """Add a file without its owner and its time. Raises OSError."""
    info = archive.gettarinfo(path, name)
    info.uid = info.gid = info.mtime = 0
    info.uname = info.gname = ""
    info.mode = 0o755 if info.mode & 0o100 else 0o644
    with path.open("rb") as file:
        archive.addfile(info, file)


def read_fields(path: Path, hint: str = "see examples/ for complete job files") -> JobDocument:
    """The fields of a file and their lines, unchecked. Raises CliError, with this hint."""
    try:
        return read_document(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CliError(f"cannot read {path}: {error.strerror}", code=ExitCode.USAGE) from None
    except UnicodeDecodeError:
        raise CliError(f"{path} is not text in UTF-8", code=ExitCode.USAGE) from None
    except JobFileError as error:
        where = f" at line {error.line}:" if error.line else ""
        raise CliError(f"{path}{where} {error.message}", hint, ExitCode.USAGE) from None


def _files(folder: Path) -> Iterator[Path]:
    """The regular files to pack, in a fixed order; links are left out."""
    patterns = list(_ALWAYS_LEFT_OUT)
    for ignore in sorted(path for path in folder.rglob(".gitignore") if path.is_file()):
        base = ignore.parent.relative_to(folder).as_posix()
        lines = ignore.read_text(encoding="utf-8", errors="replace").splitlines()
        patterns += [
            _rooted(line, base)
            for line in lines
            if line.strip() and not line.startswith("#") and _is_pattern(line)
        ]
    ignored = pathspec.GitIgnoreSpec.from_lines(patterns)
    for name in sorted(ignored.match_tree_files(folder, negate=True, follow_links=False)):
        path = folder / name
        if path.is_file() and not path.is_symlink():
            yield path


def _is_pattern(line: str) -> bool:
    """Whether it can match anything; git passes over others, such as a lone `!`."""
    try:
        pathspec.GitIgnoreSpec.from_lines([line])
    except (ValueError, re.error):
        return False
    return True


def _rooted(line: str, base: str) -> str:
    """A pattern of a .gitignore in a sub-folder, as seen from the top."""
    if base == ".":
        return line
    negated, pattern = ("!", line[1:]) if line.startswith("!") else ("", line)
    inner = pattern.lstrip("/") if "/" in pattern.rstrip("/") else f"**/{pattern}"
    return f"{negated}{base}/{inner}"


def _too_large(folder: Path, sizes: dict[Path, int]) -> CliError:
    largest = sorted(sizes, key=sizes.__getitem__, reverse=True)[:3]
    shown = ", ".join(f"{path.relative_to(folder)} ({sizes[path]:,} bytes)" for path in largest)
    return CliError(
        f"workdir {folder} is too large: over {MAX_BUNDLE_BYTES // 2**20} MiB packed or "
        f"{MAX_BUNDLE_FILES:,} files; the largest: {shown}",
        "name data and build output in .gitignore; put data into a data snapshot",
        ExitCode.USAGE,
    )


def _checkout(folder: Path, content: dict[str, Any]) -> dict[str, str]:
    """The commit and the diff of a git checkout, where the job file does not give them."""
    if "code_ref" in content or "codeRef" in content:
        return {}
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit:
        return {}
    found = {"code_ref": commit.strip()}
    diff = _git(folder, "diff", "HEAD", "--", ".")
    if diff:
        found["code_diff"] = diff[:DIFF_LIMIT_CHARS]
    return found


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
