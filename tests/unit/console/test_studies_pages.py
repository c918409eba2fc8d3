"""Studies and one study: what they show, what they ask REST, and the form that stops one."""

from __future__ import annotations

from typing import Any

import pytest

from gangline_console.pages.studies import REASONS
from gangline_console.pages.study import TRIAL_REASONS
from gangline_gateway import studies_state, study_views
from gangline_schemas.api.cluster import TeamList
from gangline_schemas.api.studies import StudyPage, StudyPlan, TrialPage
from gangline_schemas.events.studies import EndReason, PruneReason
from gangline_schemas.job_file import read_document
from gangline_schemas.study_file import StudySpec
from gangline_schemas.study_job import example_job
from support.builders.console import console, csrf, job
from support.builders.studies import Studies, example
from support.fakes.console_gateway import away, problem

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


FILE = """\
name: lr-sweep
team: nlp
objective: {metric: loss}
space:
  lr: {type: float, low: 0.1, high: 0.9}
job: {run: "true", resources: {gpus: 2}}
"""


def plan_of(text: str, **changes: Any) -> StudyPlan:
    spec = StudySpec.model_validate(read_document(text).content)
    job = example_job(spec, "lr-sweep-0")
    values = {"trials": 100, "points": None, "notes": [], "rejected": False} | changes
    return StudyPlan(study_id="lr-sweep-0", job=job, spec=spec, **values)


def test_a_study_is_checked_and_submitted_from_its_page() -> None:
    made = answers(example())
    detail = made[f"GET {PATH}"]
    client, gateway = console({**made, "POST /v1/studies": plan_of(FILE, notes=["must wait"])})
    fields = {"csrf": csrf(), "text": FILE, "nonce": "n1"}
    shown = client.post("/console/studies", data=fields | {"check": "1"})
    assert shown.status_code == 200
    for part in ("At most 100 trials, 4 at a time, 2 GPUs each", "must wait", "low: 0.1"):
        assert part in shown.text, part
    _path, query, body = next(one for one in gateway.asked if one[0] == "POST /v1/studies")
    assert query == {"dry_run": True}
    assert StudySpec.model_validate(body).space.keys() == {"lr"}

    client, gateway = console({**made, "POST /v1/studies": detail})
    for _ in range(2):
        done = client.post("/console/studies", data=fields)
        assert done.headers["location"] == f"/console/studies/{ID}"
    assert len(set(gateway.keys)) == 1
    assert gateway.keys[0].startswith("console-n1-")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("name: [", ("Line 1", "the file")),
        (FILE.replace("low: 0.1", "low: 9"), ("Line 5", "space")),
        (FILE.replace("objective: {metric: loss}\n", ""), ("objective",)),
        (
            FILE.replace('run: "true"', 'run: "true", workdir: .'),
            ("Line 6", "cannot send a folder"),
        ),
    ],
)
def test_a_wrong_study_file_is_shown_again_with_its_errors(
    text: str, shown: tuple[str, ...]
) -> None:
    client, gateway = console(answers(example()))
    answer = client.post("/console/studies", data={"csrf": csrf(), "text": text})
    assert answer.status_code == 422
    for part in (*shown, "lr-sweep", '<details class="more" open>'):
        assert part in answer.text, part
    assert not any(one[0].startswith("POST") for one in gateway.asked)


def test_what_rest_refuses_stands_beside_the_text() -> None:
    for refused, shown in (
        (problem(403, "forbidden", "not of team nlp"), "not of team nlp"),
        (away(), "it is not known whether the study was submitted"),
    ):
        client, _ = console({**answers(example()), "POST /v1/studies": refused})
        answer = client.post("/console/studies", data={"csrf": csrf(), "text": FILE})
        assert answer.status_code == 422
        assert shown in answer.text
        assert "low: 0.1" in answer.text


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
