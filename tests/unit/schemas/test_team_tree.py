"""The tree of teams: which trees are refused, with the team, the field and the way out."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from gangline_schemas.base import field_errors
from gangline_schemas.gpus import covered
from gangline_schemas.team_limits import TeamConfig
from gangline_schemas.teams import (
    line,
    lowest,
    owed,
    problems,
    rolled_up,
    tightest,
    type_limits,
    walk,
)


def tree(*entries: dict[str, Any]) -> dict[str, TeamConfig]:
    teams = [TeamConfig.model_validate({"gpu_limit": 64} | entry) for entry in entries]
    return {config.team: config for config in teams}


LAB = {"team": "lab", "gpu_guarantee": 32}


@pytest.mark.parametrize(
    ("entries", "wanted"),
    [
        (
            [{"team": "a", "parent": "labs"}, LAB],
            "team 'a': parent: there is no team 'labs' (known: lab); add it, or leave parent out",
        ),
        (
            [{"team": "a", "parent": "a"}],
            "team 'a': parent: is below itself: a > a; give one of them another parent or none",
        ),
        (
            [
                {"team": "a", "parent": "b"},
                {"team": "b", "parent": "c"},
                {"team": "c", "parent": "b"},
            ],
            "team 'b': parent: is below itself: b > c > b; give one of them another parent or none",
        ),
        (
            [LAB, {"team": "a", "parent": "lab", "gpu_limit": 65}],
            (
                "team 'a': gpu_limit: 65 is above the 64 of its parent 'lab'; "
                "lower it, or raise the parent's first"
            ),
        ),
        (
            [
                LAB,
                {"team": "a", "parent": "lab", "gpu_guarantee": 20},
                {"team": "b", "parent": "lab", "gpu_guarantee": 13},
            ],
            (
                "team 'lab': gpu_guarantee: the teams below are guaranteed 33 (a 20 + b 13), above "
                "its gpu_guarantee of 32; lower theirs, or raise its gpu_guarantee first"
            ),
        ),
        (
            [
                {"team": "lab", "gpu_limit": 30},
                {"team": "a", "parent": "lab", "gpu_limit": 30, "gpu_guarantee": 20},
                {"team": "b", "parent": "lab", "gpu_limit": 30},
                {"team": "c", "parent": "b", "gpu_limit": 30, "gpu_guarantee": 11},
            ],
            (
                "team 'lab': gpu_guarantee: the teams below are guaranteed 31 (a 20 + b 11), above "
                "its gpu_limit of 30; lower theirs, or raise its gpu_limit first"
            ),
        ),
        (
            [
                {"team": "lab", "gpu_types": ["a100", "l4"]},
                {"team": "mid", "parent": "lab"},
                {"team": "a", "parent": "mid", "gpu_types": ["h100"]},
            ],
            (
                "team 'a': gpu_types: h100 is not among those of its parent 'mid' (a100, l4); "
                "drop it, or allow it to the parent first"
            ),
        ),
        (
            [
                {"team": "lab", "gpu_types": {"h100": 8}},
                {"team": "a", "parent": "lab", "gpu_types": {"h100": 9}},
            ],
            (
                "team 'a': gpu_types: 9 of h100 is above the 8 of team 'lab'; "
                "lower it, or raise that first"
            ),
        ),
        (
            [
                {"team": "lab", "gpu_hours_per_month": 100},
                {"team": "a", "parent": "lab", "gpu_hours_per_month": 100.5},
            ],
            (
                "team 'a': gpu_hours_per_month: 100.5 is above the 100 of its parent 'lab'; "
                "lower it, or raise the parent's first"
            ),
        ),
    ],
)
def test_a_broken_tree_names_team_field_and_way_out(
    entries: list[dict[str, Any]], wanted: str
) -> None:
    assert [str(problem) for problem in problems(tree(*entries).values())] == [wanted]


@pytest.mark.parametrize(
    "entries",
    [
        [{"team": "a"}, {"team": "b", "gpu_guarantee": 64}],
        [{"team": "a", "parent": "lab"}, LAB],
        [
            LAB,
            {"team": "a", "parent": "lab", "gpu_guarantee": 16, "borrow_limit": 1000},
            {"team": "b", "parent": "lab", "gpu_guarantee": 16},
        ],
        [
            {"team": "lab", "gpu_types": {"h100": 8, "a100": None}},
            {"team": "a", "parent": "lab", "gpu_types": ["H100"]},
            {"team": "b", "parent": "lab", "gpu_types": {"a100": 60}},
        ],
    ],
)
def test_a_sound_tree_has_no_problems(entries: list[dict[str, Any]]) -> None:
    assert problems(tree(*entries).values()) == []


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"weight": -1}, "weight", "equal to 0"),
        ({"weight": 1e-9}, "weight", "1e-09 is too small; accepted: 0, or from 1e-06 up"),
        ({"gpu_hours_per_month": 0}, "gpu_hours_per_month", "equal to 0.000001"),
        ({"parent": "Lab!"}, "parent", "a-z, 0-9 and"),
        ({"gpu_types": {"h100": -1}}, "gpu_types.0.gpu_limit", "greater than or equal to 0"),
        ({"gpu_types": ["h100", "H100"]}, "gpu_types", "names h100 twice"),
        ({"gpu_limit": True}, "gpu_limit", "must be a number, not true or false"),
        (
            {"gpu_types": {"h100": False}},
            "gpu_types.0.gpu_limit",
            "must be a number, not true or false",
        ),
    ],
)
def test_a_team_alone_names_the_field(fields: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        TeamConfig.model_validate({"team": "a", "gpu_limit": 1} | fields)
    (error,) = field_errors(caught.value)
    assert error.field == field
    assert words in error.message


def test_the_line_the_tightest_and_the_sums() -> None:
    teams = tree(
        {"team": "lab", "gpu_limit": 16},
        {"team": "nlp", "parent": "lab", "gpu_limit": 16, "borrow_limit": 8},
        {"team": "speech", "parent": "nlp", "gpu_limit": 12, "borrow_limit": 8},
        {"team": "cv", "gpu_limit": 9},
    )
    assert [config.team for config in line(teams, "speech")] == ["speech", "nlp", "lab"]
    assert tightest(teams, "speech").team == "lab"
    sums = {"lab": 11, "nlp": 10, "speech": 8, "cv": 4}
    assert rolled_up(teams, {"speech": 8, "nlp": 2, "lab": 1, "cv": 4}) == sums
    assert list(walk({name: config.parent for name, config in teams.items()})) == [
        ("cv", 0), ("lab", 0), ("nlp", 1), ("speech", 2),
    ]  # fmt: skip
    assert list(walk({"speech": "nlp", "nlp": "gone"})) == [("nlp", 0), ("speech", 1)]


def test_what_is_owed_is_the_guarantee_or_what_those_below_are_owed() -> None:
    teams = tree(
        {"team": "lab"},
        {"team": "a", "parent": "lab", "gpu_guarantee": 3},
        {"team": "b", "parent": "lab", "gpu_guarantee": 4},
        {"team": "c", "parent": "b", "gpu_guarantee": 2},
    )
    assert owed(teams) == {"lab": 7, "a": 3, "b": 4, "c": 2}


def test_gpu_models_narrow_down_the_tree() -> None:
    teams = tree(
        {"team": "lab", "gpu_types": {"h100": 8, "a100": 4, "l4": None}},
        {"team": "mid", "parent": "lab"},
        {"team": "a", "parent": "mid", "gpu_types": {"h100": None, "a100": 2, "l4": 5}},
        {"team": "free"},
    )
    found = {model: lowest(limits) for model, limits in (type_limits(teams, "a") or {}).items()}
    assert {model: (limit.gpu_limit, limit.team) for model, limit in found.items()} == (
        dict.fromkeys(covered("h100"), (8, "lab"))
        | dict.fromkeys(covered("a100"), (2, "a"))
        | {"l4": (5, "a")}
    )
    assert type_limits(teams, "mid") == type_limits(teams, "lab")
    assert type_limits(teams, "free") is None


def test_a_family_and_its_models_limit_each_other_down_the_tree() -> None:
    parent = {"team": "lab", "gpu_types": {"a100": 8, "rtx4090": None}}
    below = {"team": "a", "parent": "lab", "gpu_types": {"A100_80GB": 6, "rtx": 9}}
    teams = tree(parent, below)
    assert problems(teams.values()) == []
    limits = type_limits(teams, "a") or {}
    assert {model: [one.gpu_limit for one in found] for model, found in limits.items()} == {
        "a100-80gb": [6, 8],
        "rtx-4090": [9, None],
    }
    above = tree(parent, {"team": "a", "parent": "lab", "gpu_types": {"a100-80gb": 9}})
    assert "9 of a100-80gb is above the 8 of team 'lab'" in str(problems(above.values())[0])
