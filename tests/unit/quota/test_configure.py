"""Teams are configured only if their tree stays sound, many at once or none."""

from __future__ import annotations

import pytest

from gangline_quota.core.decide import Quota
from gangline_quota.core.state import TEAMS_FILE_USER, State
from gangline_schemas.events.admin import TeamConfigureRequested, TeamsConfigureRequested
from gangline_schemas.events.quota import RequestRefused, TeamConfigured
from gangline_schemas.team_limits import TeamConfig
from support.builders.deciding import Drive, every, only

LAB = TeamConfig(team="lab", gpu_limit=64, gpu_guarantee=32)
NLP = TeamConfig(team="nlp", gpu_limit=32, parent="lab", gpu_guarantee=16)


@pytest.fixture
def quota() -> Drive[State]:
    drive = Drive(Quota())
    drive.give(TeamsConfigureRequested(teams=(NLP, LAB)))
    return drive


def test_parents_come_before_their_children() -> None:
    decided = Drive(Quota()).give(TeamsConfigureRequested(teams=(NLP, LAB), user="ada"))

    assert [event.config.team for event in every(decided, TeamConfigured)] == ["lab", "nlp"]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"parent": "labs"}, "team 'nlp': parent: there is no team 'labs' (known: lab)"),
        ({"parent": "nlp"}, "team 'nlp': parent: is below itself: nlp > nlp"),
        ({"gpu_limit": 65}, "team 'nlp': gpu_limit: 65 is above the 64 of its parent 'lab'"),
        ({"gpu_limit": 64, "gpu_guarantee": 33}, "team 'lab': gpu_guarantee: the teams below"),
    ],
)
def test_a_request_that_would_break_the_tree_is_refused(
    quota: Drive[State], fields: dict[str, object], reason: str
) -> None:
    request = TeamConfigureRequested(config=NLP.model_copy(update=fields), user="ada")

    refused = only(quota.give(request, ce_id="r1"), RequestRefused)

    assert refused.reason.startswith(f"the tree of teams would be broken: {reason}")
    assert (refused.target, refused.user, refused.request_id) == ("nlp", "ada", "r1")
    assert quota.state.teams == {"lab": LAB, "nlp": NLP}
    assert quota.give(request, ce_id="r1") == []


def test_many_at_once_may_pass_what_one_after_the_other_may_not(quota: Drive[State]) -> None:
    smaller = LAB.model_copy(update={"gpu_limit": 16, "gpu_guarantee": 8})
    also = NLP.model_copy(update={"gpu_limit": 16, "gpu_guarantee": 8})

    only(quota.give(TeamConfigureRequested(config=smaller)), RequestRefused)
    decided = quota.give(TeamsConfigureRequested(teams=(smaller, also)))

    assert len(every(decided, TeamConfigured)) == 2


def test_all_or_none(quota: Drive[State]) -> None:
    good = TeamConfig(team="cv", gpu_limit=1)
    bad = TeamConfig(team="ml", gpu_limit=1, parent="gone")

    only(quota.give(TeamsConfigureRequested(teams=(good, bad))), RequestRefused)
    twice = only(quota.give(TeamsConfigureRequested(teams=(good, good))), RequestRefused)

    assert "team 'cv' stands twice" in twice.reason
    assert "cv" not in quota.state.teams


def test_the_file_is_refused_when_it_does_not_fit_what_was_changed_since(
    quota: Drive[State],
) -> None:
    quota.give(TeamsConfigureRequested(teams=(LAB, NLP), user=TEAMS_FILE_USER))
    quota.give(TeamConfigureRequested(config=TeamConfig(team="cv", gpu_limit=60, parent="lab")))
    file = (LAB.model_copy(update={"gpu_limit": 40}), NLP)

    refused = only(
        quota.give(TeamsConfigureRequested(teams=file, user=TEAMS_FILE_USER)), RequestRefused
    )

    assert "team 'cv': gpu_limit: 60 is above the 40 of its parent 'lab'" in refused.reason
    assert refused.target == TEAMS_FILE_USER


def test_a_tree_that_is_already_broken_can_be_mended(quota: Drive[State]) -> None:
    quota.state.teams["old"] = TeamConfig(team="old", gpu_limit=999, parent="lab")

    assert only(
        quota.give(TeamConfigureRequested(config=NLP.model_copy(update={"gpu_limit": 33}))),
        TeamConfigured,
    )
