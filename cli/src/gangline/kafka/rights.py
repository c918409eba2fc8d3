"""The rights of each part on Kafka, from deploy/kafka/acls.toml.

A wheel has the file beside this module; a checkout has it under `deploy`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from gangline.errors import CliError
from gangline_bus.topics import TopicNames
from gangline_schemas.base import field_errors
from gangline_schemas.catalog import Topic
from gangline_service.config_file import ConfigFileError, read_config_file

_HERE = Path(__file__).parent
_FILES = (_HERE / "acls.toml", _HERE.parents[3] / "deploy" / "kafka" / "acls.toml")
FAMILY = "gangline."
"""How all topics begin."""
_DEAD = "*.dlq"


class Rights(BaseModel):
    """The rights of one principal. Names are as in the catalog, without a prefix."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    read: frozenset[str]
    write: frozenset[str]
    transactional_id: str | None = None
    groups: tuple[str, ...]
    describe_groups: tuple[str, ...] = ()


def topics() -> tuple[str, ...]:
    """The full names of all topics of the catalog, and of their dead letters."""
    return (*(topic.value for topic in Topic), *sorted(dead_letters()))


def dead_letters() -> frozenset[str]:
    """Where consumers put the records that they refuse."""
    return frozenset(topic.name for topic in TopicNames().settings()) - {*Topic}


def read_rights(path: Path | None = None) -> dict[str, Rights]:
    """The rights of each principal, in the order of the file. Raises CliError.

    Without a path it is the file of this release.
    """
    file = path or next((file for file in _FILES if file.exists()), _FILES[0])
    try:
        content = read_config_file(file)
    except ConfigFileError as error:
        raise CliError(str(error)) from None
    if not isinstance(content, dict):
        raise CliError(f"{file}: must be a table for each principal")
    return {name: _rights(file, name, entry) for name, entry in content.items()}


def _rights(file: Path, name: str, entry: object) -> Rights:
    try:
        found = Rights.model_validate(entry)
    except ValidationError as error:
        first = field_errors(error)[0]
        raise CliError(f"{file}: {name}.{first.field}: {first.message}") from None
    return found.model_copy(
        update={
            "read": _full(file, name, found.read),
            "write": _full(file, name, found.write),
        }
    )


def _full(file: Path, principal: str, names: Iterable[str]) -> frozenset[str]:
    """Full names of topics. Raises CliError for one that the catalog does not have."""
    full: set[str] = set()
    for name in names:
        full |= dead_letters() if name == _DEAD else {f"{FAMILY}{name}"}
    unknown = sorted(full - {*topics()})
    if unknown:
        raise CliError(f"{file}: {principal}: there is no topic {unknown[0]}")
    return frozenset(full)


def table(rights: Mapping[str, Rights]) -> str:
    """All rights as a table in Markdown; topics without `gangline.`."""
    rows = [
        ("principal", "read", "write", "transactional id (prefix)", "groups (prefix)"),
        ("---",) * 5,
    ]
    for name, own in rights.items():
        cells = (_cell(own.read), _cell(own.write), own.transactional_id or "-")
        rows.append((name, *cells, ", ".join(own.groups)))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows).replace("| --- ", "|---") + "\n"


def _cell(names: frozenset[str]) -> str:
    """In the catalog's order; all dead letters together are "*.dlq"."""
    dead = dead_letters()
    shown = [name.removeprefix(FAMILY) for name in topics() if name in names]
    if names >= dead:
        shown = [name for name in shown if f"{FAMILY}{name}" not in dead] + [_DEAD]
    return ", ".join(shown) or "-"
