"""MLflow's file store (`mlruns/`): experiments and runs as folders, metrics as lines of text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gangline.exchange.records import Point, SourceError, SourceRun, lines_of, whole_text

META = "meta.yaml"
_STATES = ("", "RUNNING", "SCHEDULED", "FINISHED", "FAILED", "KILLED")
"""By the number that the file store writes."""
_TRASH = ".trash"
_TROUBLES = 10
"""So many wrong lines of a file are named, the others counted."""
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def is_store(path: Path) -> bool:
    """Whether the folder holds experiments, or is itself an experiment or a run."""
    return (path / META).is_file() or any(path.glob(f"*/{META}"))


class MlflowFiles:
    """A file store, one experiment of it, or one run."""

    kind = "MLflow directory"

    def __init__(self, path: Path) -> None:
        self._path = path

    def runs(self) -> Iterator[SourceRun | SourceError]:
        """The runs that are not deleted."""
        experiments: dict[Path, _Experiment] = {}
        for meta in sorted(self._metas()):
            try:
                found = _yaml(meta)
                if "run_id" not in found and "run_uuid" not in found:
                    continue
                if found.get("lifecycle_stage") != "deleted":
                    yield self._run(meta.parent, found, experiments)
            except SourceError as error:
                yield error

    def _metas(self) -> Iterator[Path]:
        for depth in ("", "*/", "*/*/"):
            for meta in self._path.glob(f"{depth}{META}"):
                if _TRASH not in meta.relative_to(self._path).parts:
                    yield meta

    def _run(
        self, folder: Path, meta: dict[str, Any], experiments: dict[Path, _Experiment]
    ) -> SourceRun:
        above = folder.parent
        if above not in experiments:
            experiments[above] = _experiment(above)
        experiment = experiments[above]
        run_id = _text(meta.get("run_id") or meta["run_uuid"])
        tags = _texts(folder / "tags")
        status = meta.get("status")
        state = _STATES[status] if isinstance(status, int) and 0 < status < len(_STATES) else ""
        return SourceRun(
            f"mlflow/{run_id}",
            _text(meta.get("run_name")) or tags.get("mlflow.runName") or run_id,
            lambda run: _points(folder, experiment.models[run_id], run),
            project=experiment.name,
            state=state or "FINISHED",
            started_ms=_whole(meta.get("start_time")),
            ended_ms=_whole(meta.get("end_time")),
            params=_texts(folder / "params"),
            tags=tags,
        )


@dataclass(frozen=True)
class _Experiment:
    """`models`: how many logged models each run has."""

    name: str
    models: Counter[str]


def _experiment(folder: Path) -> _Experiment:
    """Without a name where one run alone is imported from elsewhere. Raises SourceError."""
    file = folder / META
    models: Counter[str] = Counter()
    for meta in folder.glob(f"models/*/{META}"):
        with suppress(SourceError):  # models are only counted
            models[_text(_yaml(meta).get("source_run_id"))] += 1
    return _Experiment(_text(_yaml(file).get("name")) if file.is_file() else "", models)


def _yaml(file: Path) -> dict[str, Any]:
    try:
        found = yaml.load(whole_text(file), _LOADER)  # noqa: S506 - a safe loader
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:  # also a wrong date
        raise SourceError(file, f"no readable YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(found, dict):
        raise SourceError(file, "no mapping")
    return found


def _text(value: object) -> str:
    """A plain value as text; a nested one may be endless by its aliases."""
    return str(value) if isinstance(value, str | int | float) else ""


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """(name, file) of each; a name with a slash is a path. No link leads out of the run."""
    run = folder.parent.resolve()
    for file in sorted(folder.rglob("*")):
        if file.is_file() and file.resolve().is_relative_to(run):
            yield file.relative_to(folder).as_posix(), file


def _texts(folder: Path) -> dict[str, str]:
    found = {}
    for name, file in _files(folder):
        try:
            found[name] = whole_text(file)
        except (OSError, ValueError) as error:
            raise SourceError(file, f"no readable text: {error}") from None
    return found


def _points(folder: Path, models: int, run: SourceRun) -> Iterator[Point]:
    run.left += _left(folder) + Counter({"logged models": models})
    for name, file in _files(folder / "metrics"):
        wrong = 0
        try:
            with file.open(encoding="utf-8") as opened:
                for number, line in enumerate(lines_of(opened), 1):
                    try:
                        yield _point(name, line)
                    except (ValueError, IndexError):
                        wrong += 1
                        if wrong > _TROUBLES:
                            run.left["more wrong lines"] += 1
                        else:
                            run.troubles.append(f"{file}:{number}: no line 'time value step'")
        except (OSError, ValueError) as error:
            run.troubles.append(f"{file}: {error}")


def _point(name: str, line: str) -> Point:
    """Of "time value", "time value step", or with a dataset's name and digest behind it."""
    parts = line.split()
    return Point(name, int(parts[2]) if len(parts) > 2 else 0, int(parts[0]), float(parts[1]))


def _left(folder: Path) -> Counter[str]:
    return +Counter(
        {
            "artifacts": sum(1 for _ in _files(folder / "artifacts")),
            "datasets": len([*folder.glob(f"inputs/*/{META}")]),
            "outputs": len([*folder.glob(f"outputs/*/{META}")]),
        }
    )
