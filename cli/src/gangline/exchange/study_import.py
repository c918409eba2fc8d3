"""Searches of other tools as study files: Katib experiments, W&B sweeps, Determined experiments.

Only what has the same meaning here is translated. The rest is named in a note, never guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gangline.errors import CliError, ExitCode
from gangline.exchange import study_sources
from gangline.exchange.katib import katib
from gangline.exchange.study_draft import Draft, ForeignError
from gangline.job_file import read_fields
from gangline.study_file import check_study
from gangline_schemas.job_file import write_yaml
from gangline_schemas.study_file import StudySpec

_Reader = Callable[[Mapping[str, Any]], Draft]


@dataclass(frozen=True)
class Translated:
    """A study file, and what the source has that it has not."""

    content: dict[str, Any]
    text: str
    notes: tuple[str, ...] = field(default=())


def translate(path: Path, team: str) -> Translated:
    """Translate a file. Raises CliError if it is of no known tool, or makes no valid study."""
    content = read_fields(path).content
    reader = _reader(content)
    if reader is None:
        raise CliError(
            f"{path} is no search of Katib, W&B or Determined",
            "Katib has spec.parameters, W&B method and parameters, Determined searcher",
            ExitCode.USAGE,
        )
    try:
        draft = reader(content)
    except ForeignError as error:
        raise CliError(f"{path}: {error}", code=ExitCode.USAGE) from None
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        why = f"not as its tool writes it ({type(error).__name__}: {error})"
        raise CliError(f"{path} is {why}", code=ExitCode.USAGE) from None
    made = {"name": draft.name, "team": team, **draft.fields}
    spec = check_study(made, f"the translation of {path}")
    return Translated(made, _text(made, spec), tuple(draft.notes))


def _reader(content: Mapping[str, Any]) -> _Reader | None:
    if "kubeflow" in str(content.get("apiVersion", "")) or content.get("kind") == "Experiment":
        return katib
    if "searcher" in content:
        return study_sources.determined
    if "method" in content and "parameters" in content:
        return study_sources.wandb
    return None


def _text(made: Mapping[str, Any], spec: StudySpec) -> str:
    return write_yaml({"version": spec.version, **made})
