"""The file of teams: two formats, and errors that name the team and the field."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from gangline_quota.service.app import teams_request
from gangline_quota.service.teams_file import read_teams
from gangline_service.config_file import ConfigFileError
from support.builders.deciding import team


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.yaml", "teams:\n  - {team: nlp, gpu_limit: 64}\n  - {team: cv, gpu_limit: 8}\n"),
        ("t.yml", "- {team: nlp, gpu_limit: 64}\n- {team: cv, gpu_limit: 8}\n"),
        ("t.toml", '[[teams]]\nteam="nlp"\ngpu_limit=64\n[[teams]]\nteam="cv"\ngpu_limit=8\n'),
    ],
)
def test_reads_teams(tmp_path: Path, name: str, text: str) -> None:
    found = read_teams(write(tmp_path, name, text))

    assert found == (team("nlp", limit=64), team("cv", limit=8))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("- {team: nlp, gpu_limit: -1}", "team 'nlp': gpu_limit"),
        ("- {team: nlp}", "team 'nlp': gpu_limit"),
        ("- {gpu_limit: 3}", "team number 1: team"),
        ("- {team: nlp, gpu_limit: 1, gpus: 3}", "team 'nlp': gpus"),
        ("- {team: a, gpu_limit: 1}\n- {team: a, gpu_limit: 2}", "team 'a': team: stands twice"),
        ("{}", "must hold a list of teams"),
        ("- {team: [", "is not YAML"),
    ],
)
def test_errors_name_the_team_and_the_field(tmp_path: Path, text: str, wanted: str) -> None:
    path = write(tmp_path, "teams.yaml", text)

    with pytest.raises(ConfigFileError, match=r"teams\.yaml") as caught:
        read_teams(path)

    assert wanted in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigFileError, match="cannot be read"):
        read_teams(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("- {team: a, gpu_limit: 1, parent: b}", "team 'a': parent: there is no team 'b'"),
        (
            "- {team: a, gpu_limit: 1, parent: b}\n- {team: b, gpu_limit: 1, parent: a}",
            "team 'a': parent: is below itself: a > b > a",
        ),
        (
            "- {team: a, gpu_limit: 9, parent: b}\n- {team: b, gpu_limit: 8}",
            "team 'a': gpu_limit: 9 is above the 8 of its parent 'b'",
        ),
    ],
)
def test_a_broken_tree_is_refused_before_anything_is_sent(
    tmp_path: Path, text: str, wanted: str
) -> None:
    path = write(tmp_path, "teams.yaml", text)

    with pytest.raises(ConfigFileError, match=r"teams\.yaml") as caught:
        read_teams(path)

    assert wanted in str(caught.value)


def test_requests_of_equal_teams_have_equal_ids() -> None:
    early, late = (datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2))

    assert teams_request((team("a"),), early).id == teams_request((team("a"),), late).id
    assert teams_request((team("a"),), early).id != teams_request((team("b"),), early).id
