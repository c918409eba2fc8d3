"""docs/guides/teams.md: its files are read, and refused with the messages that it shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gangline_quota.service.teams_file import read_teams
from gangline_schemas.team_limits import TeamConfig
from gangline_service.config_file import ConfigFileError

PAGE = (Path(__file__).parents[3] / "docs" / "guides" / "teams.md").read_text(encoding="utf-8")
REFUSED = re.findall(r"```yaml\n([^`]*)```\n```\n([^`]*)```", PAGE)
READ = [
    (kind, text)
    for kind, text in re.findall(r"```(yaml|toml)\n([^`]*)```", PAGE)
    if text not in {refused for refused, _ in REFUSED}
]


def write(folder: Path, kind: str, text: str) -> Path:
    path = folder / f"teams.{kind}"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(("kind", "text"), READ)
def test_files_that_are_shown_are_read(tmp_path: Path, kind: str, text: str) -> None:
    teams = {team.team: team for team in read_teams(write(tmp_path, kind, text))}

    assert teams["nlp"].parent == "research"
    assert {item.gpu_type: item.gpu_limit for item in teams["nlp"].gpu_types} == {
        "h100": 48,
        "a100": None,
    }


@pytest.mark.parametrize(("text", "quoted"), REFUSED)
def test_refusals_are_as_shown(tmp_path: Path, text: str, quoted: str) -> None:
    wanted = " ".join(quoted.splitlines())
    path = write(tmp_path, "yaml", text)

    with pytest.raises(ConfigFileError) as caught:
        read_teams(path)

    assert str(caught.value) == f"{path}: {wanted}"


def test_there_are_examples_of_both() -> None:
    assert (len(READ), len(REFUSED)) == (2, 5)


def test_every_field_is_described() -> None:
    described = set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE))
    assert described == set(TeamConfig.model_fields)
