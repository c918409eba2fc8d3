"""An operator's variables for all ranks of a node, from a file of NAME=VALUE lines.

Blank lines and lines that begin with # count for nothing. A value is all that follows the first
`=`, without quotes or expansion. Names and sizes are those of a job's `env`; the job's own win.
"""

from __future__ import annotations

from pathlib import Path

from gangline_schemas.environment import ENV_LIMIT_BYTES, refuse_unsafe_env

_LIMIT_BYTES = 2 * ENV_LIMIT_BYTES


class BadRankEnvFile(Exception):
    """The file cannot be used; the message names it and the line or the variable."""


def read_rank_env(path: Path | None) -> dict[str, str]:
    """The variables; {} without a file. Raises BadRankEnvFile."""
    if path is None:
        return {}
    try:
        with path.open("rb") as file:
            raw = file.read(_LIMIT_BYTES + 1)
        if len(raw) > _LIMIT_BYTES:
            raise BadRankEnvFile(f"{path}: has more than {_LIMIT_BYTES:,} bytes")
        return refuse_unsafe_env(_parsed(raw.decode()))
    except OSError as error:
        raise BadRankEnvFile(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise BadRankEnvFile(f"{path}: {_said(error)}") from None


def _said(error: ValueError) -> str:
    return "is no UTF-8 text" if isinstance(error, UnicodeError) else str(error)


def _parsed(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for number, raw in enumerate(text.split("\n"), start=1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not equals or "\0" in value:
            raise ValueError(f"line {number} must be NAME=VALUE")
        if name in found:
            raise ValueError(f"line {number} gives {name} again")
        found[name] = value
    return found
