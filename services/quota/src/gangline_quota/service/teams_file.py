"""The file of teams: what the cluster's owner grants, read at the start of the service.

YAML, either a list or `teams:` with a list; in TOML `[[teams]]`:

    teams:
      - {team: research, gpu_limit: 128, gpu_guarantee: 96}
      - {team: nlp, parent: research, gpu_limit: 64, gpu_guarantee: 32, borrow_limit: 16}

The whole tree is checked before anything is sent. docs/guides/teams.md has every field.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from gangline_schemas.base import field_errors
from gangline_schemas.team_limits import TeamConfig
from gangline_schemas.teams import problems as tree_problems
from gangline_service.config_file import ConfigFileError, read_config_file


def read_teams(path: Path) -> tuple[TeamConfig, ...]:
    """The teams of the file, in its order. Raises ConfigFileError with every problem found."""
    content = read_config_file(path)
    entries = content.get("teams") if isinstance(content, dict) else content
    if not isinstance(entries, list) or not entries:
        raise ConfigFileError(f"{path}: must hold a list of teams (`teams:` or `[[teams]]`)")
    teams: list[TeamConfig] = []
    problems: list[str] = []
    for number, entry in enumerate(entries, start=1):
        name = entry.get("team") if isinstance(entry, dict) else None
        label = f"team '{name}'" if isinstance(name, str) else f"team number {number}"
        try:
            team = TeamConfig.model_validate(entry)
        except ValidationError as error:
            problems += [f"{label}: {item.field}: {item.message}" for item in field_errors(error)]
            continue
        if any(other.team == team.team for other in teams):
            problems.append(f"{label}: team: stands twice; merge the two entries")
        teams.append(team)
    if not problems:
        problems += [str(problem) for problem in tree_problems(teams)]
    if problems:
        raise ConfigFileError(f"{path}: " + "; ".join(problems))
    return tuple(teams)
