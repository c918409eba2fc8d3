"""Studies and one study: what they show, what they ask REST, and the form that stops one."""

from __future__ import annotations

from typing import Any

import pytest

from gangline_console.pages.studies import REASONS
from gangline_console.pages.study import TRIAL_REASONS
from gangline_gateway import studies_state, study_views
from gangline_schemas.api.cluster import TeamList
from gangline_schemas.api.studies import StudyPage, TrialPage
from gangline_schemas.events.studies import EndReason, PruneReason
from support.builders.console import console, csrf, job
from support.builders.studies import Studies, example
from support.fakes.console_gateway import away

ID = "lr-sweep-1"
PATH = f"/v1/studies/{ID}"


def answers(made: Studies) -> dict[str, Any]:
    """REST's answers about the study, from the gateway's own code."""
    facts = made.state.studies[ID]
    trials = studies_state.trials_of(made.state, ID)
    rows = [studies_state.trial(ID, facts, each, made.now) for each in trials]
    return {
        "GET /v1/studies": StudyPage(
            studies=[studies_state.summary(made.state, ID, facts, made.now)], cursor="50"
        ),
        "GET /v1/teams": TeamList(teams=[]),
        f"GET {PATH}": studies_state.detail(made.state, ID, facts, made.now),
        f"GET {PATH}/trials": TrialPage(trials=rows, cursor="100"),
        f"GET {PATH}/importance": study_views.importance(facts, trials, facts.spec.objective[0]),
        f"GET {PATH}/pareto": study_views.pareto(ID, facts, trials, made.now),
        f"POST {PATH}/stop": studies_state.detail(made.state, ID, facts, made.now),
    }


def test_a_list_shows_progress_and_the_best_value() -> None:
    client, gateway = console(answers(example()))
    text = client.get("/console/studies?state=running&team=nlp").text
    for shown in ("lr-sweep", "4 of 8", '<b class="num">1.5</b>', "random, asha", "Older"):
        assert shown in text, shown
    asked = next(query for path, query, _ in gateway.asked if path == "GET /v1/studies")
    assert (asked["state"], asked["team"], asked["name"]) == ("running", "nlp", None)


def test_without_studies_the_page_says_how_to_begin() -> None:
    known = {"GET /v1/studies": StudyPage(studies=[], cursor=None)}
    client, _ = console({**answers(example()), **known})
    assert "gangline study submit study.yaml" in client.get("/console/studies").text
    assert "No study matches" in client.get("/console/studies?name=x").text


def test_a_study_has_its_best_trials_importance_and_a_button_to_stop_it() -> None:
    client, _ = console(answers(example()))
    text = client.get(f"/console/studies/{ID}").text
    for shown in (
        "Best eval_loss", "importance of lr", "From 2 completed trials: it says little", "Stop…",
        "out of memory", "2 trials that run or wait are cancelled", "The best trial",
        f"/console/jobs/{ID}-t2",
    ):  # fmt: skip
        assert shown in text, shown


@pytest.mark.parametrize("tab", ["axes", "trials", "config", "nonsense"])
def test_each_tab(tab: str) -> None:
    client, gateway = console(answers(example()))
    answer = client.get(f"/console/studies/{ID}?tab={tab}&state=pruned&order=newest&cursor=3")
    assert answer.status_code == 200
    asked = [query for path, query, _ in gateway.asked if path == f"GET {PATH}/trials"]
    if tab == "trials":
        assert asked == [{"state": "pruned", "order_by": "newest", "limit": 100, "cursor": "3"}]
        assert "cursor=100" in answer.text
    if tab == "config":
        assert "min_steps: 10" in answer.text


def test_texts_of_users_are_escaped() -> None:
    made = Studies()
    hostile = "<script>alert(1)</script>"
    space = {
        "opt": {"type": "choice", "values": [hostile, "adam"]},
        "lr": {"type": "float", "low": 0.001, "high": 1},
    }
    made.create(space=space, objective={"metric": "<b>loss</b>"}, stopping="none")
    made.run(0, {9: 1.0}, opt=hostile)
    client, _ = console(answers(made))
    for tab in ("overview", "trials", "config"):
        text = client.get(f"/console/studies/{ID}?tab={tab}").text
        assert hostile not in text
        assert "<b>loss</b>" not in text


def test_several_objectives_have_a_pareto_front() -> None:
    made = Studies()
    goals = [{"metric": "loss"}, {"metric": "p99"}]
    made.create(objective=goals, stopping="none")
    made.run(0, {9: 1.0}, others={"p99": 5.0})
    made.run(1, {9: 2.0}, others={"p99": 9.0})
    client, _ = console(answers(made))
    text = client.get(f"/console/studies/{ID}").text
    assert "Pareto front" in text
    assert 'data-trial="1"' not in text
    assert "2 objectives" in client.get("/console/studies").text


def test_an_ended_study_says_why_and_has_no_button() -> None:
    made = Studies()
    made.create()
    made.end()
    text = console(answers(made))[0].get(f"/console/studies/{ID}").text
    assert "The study has ended: all its trials have ended." in text
    assert "Stop…" not in text
    assert {*REASONS} == {*EndReason}
    assert {*TRIAL_REASONS} == {*PruneReason}


def test_it_is_stopped_by_its_form_alone() -> None:
    client, gateway = console(answers(example()))
    assert client.post(f"/console/studies/{ID}/stop", data={"sure": "1"}).status_code == 403
    assert not [path for path, *_ in gateway.asked if path.startswith("POST")]
    answer = client.post(f"/console/studies/{ID}/stop", data={"csrf": csrf()})
    assert answer.headers["location"] == f"/console/studies/{ID}"
    assert f"POST {PATH}/stop" in [path for path, *_ in gateway.asked]


def test_a_study_of_another_team_is_not_there() -> None:
    client, _ = console(answers(example()))
    assert client.get("/console/studies/theirs-1").status_code == 404


def test_the_job_of_a_trial_leads_to_its_study() -> None:
    trial = {"study_id": ID, "number": 7, "metrics": ["eval_loss"]}
    spec = {"name": "x", "team": "nlp", "run": "true", "resources": {"gpus": 1}, "trial": trial}
    path = "GET /v1/training-jobs/llama-0a1b"
    client, _ = console({path: job(spec=spec), f"{path}/events": away()})
    text = client.get("/console/jobs/llama-0a1b?tab=config").text
    assert f'<a href="/console/studies/{ID}">trial 7 of {ID}</a>' in text
