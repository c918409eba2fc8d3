"""Teams have MLflow workspaces of their own, jobs have runs, with names that MLflow allows."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline_schemas.mlflow_workspace import LONGEST, PREFIX, mlflow_run_id, team_of, workspace_of

MLFLOW = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
MLFLOWS_OWN = {"default", "workspaces", "api", "ajax-api", "static-files"}
NAMES = st.from_regex(r"(team-)?[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?", fullmatch=True)


@given(NAMES | st.sampled_from(sorted(MLFLOWS_OWN)))
def test_a_team_has_a_workspace_of_its_own_that_mlflow_allows(team: str) -> None:
    workspace = workspace_of(team)
    assert MLFLOW.fullmatch(workspace)
    assert 2 <= len(workspace) <= LONGEST
    assert workspace not in MLFLOWS_OWN
    assert team_of(workspace) == team


def test_most_teams_have_their_name_as_workspace() -> None:
    assert [workspace_of(name) for name in ("nlp", "default", "a")] == [
        "nlp", "team-default", "team-a",
    ]  # fmt: skip


def test_a_name_that_has_no_room_for_the_prefix_is_refused() -> None:
    longest = PREFIX + "x" * (LONGEST - 2 * len(PREFIX))
    assert team_of(workspace_of(longest)) == longest
    with pytest.raises(ValueError, match="more than 58 characters"):
        workspace_of(longest + "x")


def test_the_run_of_a_job_is_the_same_in_every_release() -> None:
    assert mlflow_run_id("train-llama-0a1b2c3d4e") == "ce9d4ddc37555b4cb079e90416205911"
    assert re.fullmatch("[0-9a-f]{32}", mlflow_run_id("x" * 63))
