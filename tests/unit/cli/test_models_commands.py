"""`gangline models`: champions whose data cannot be watched."""

from __future__ import annotations

from typing import Any

import pytest

from support.fakes.stub_gateway import Stub
from support.harnesses.cli_run import Runner

UNKNOWN = "no profile of the data of version 2 is known"
ALIAS: dict[str, Any] = {
    "alias": "champion", "version": 2, "since": None, "rollback_to": None, "drift": 0,
    "aged": False,
}  # fmt: skip
DRIFT: dict[str, Any] = {
    "alias": "champion", "version": 2, "snapshot": "tickets@x", "profiled": False, "made_at": None,
    "age_days": None, "limit_days": 90.0, "aged": False, "data_unknown": UNKNOWN, "checks": [],
}  # fmt: skip


def test_drift_says_that_no_profile_is_known(gangline: Runner, stub: Stub) -> None:
    stub.on("GET", "/v1/models/summarizer/aliases/champion/drift", DRIFT)
    shown = gangline("models", "drift", "summarizer", "--alias", "champion")
    assert f"age and drift are not known: {UNKNOWN}" in shown.out
    assert "gangline data profile" in shown.out


@pytest.mark.parametrize(("why", "word"), [(UNKNOWN, "unknown"), ("", "-")])
def test_a_list_says_whose_data_are_not_watched(
    gangline: Runner, stub: Stub, why: str, word: str
) -> None:
    row = {
        "team": "nlp", "model": "summarizer", "aliases": [{**ALIAS, "data_unknown": why}],
        "has_gate": True, "versions": 2, "newest_version": 2, "waiting": 0,
    }  # fmt: skip
    stub.on("GET", "/v1/models", {"models": [row]})
    assert gangline("models").out.split()[-1] == word
