"""The table of jobs: filters in the address, pages, and cancelling many at once."""

from __future__ import annotations

from pydantic import BaseModel

from gangline_schemas.api.cluster import TeamList
from gangline_schemas.api.jobs import JobCounts, JobPage, JobSummary
from support.builders.console import console, csrf, job
from support.fakes.console_gateway import problem


def lists(*jobs: BaseModel, cursor: str | None = None) -> dict[str, BaseModel | Exception]:
    return {
        "GET /v1/training-jobs": JobPage.model_validate(
            {
                "jobs": [
                    item.model_dump(include={*JobSummary.model_fields})
                    for item in jobs
                ],
                "cursor": cursor,
            }
        ),
        "GET /v1/training-jobs/counts": JobCounts(total=3, states={"failed": 1, "running": 2}),
        "GET /v1/teams": TeamList(teams=[]),
    }  # fmt: skip


def test_filters_of_the_address_are_asked_of_rest_and_kept_in_links():
    client, gateway = console(lists(job(), cursor="7.x"))

    answer = client.get("/console/jobs?state=running&team=research&name=lla&user=")

    asked = dict(next(item[1] for item in gateway.asked if item[0] == "GET /v1/training-jobs"))
    assert asked == {
        "state": ["running"], "team": "research", "user": None, "name": "lla", "cursor": None,
        "project": None, "text": None, "order_by": None, "reverse": None,
    }  # fmt: skip
    assert "state=running&amp;team=research&amp;name=lla&amp;cursor=7.x" in answer.text
    assert '<input name="name" value="lla"' in answer.text


def test_a_row_shows_values_with_their_units():
    client, _ = console(lists(job()))

    text = client.get("/console/jobs").text

    for shown in ("1,200 of 20,000", "0.03127", "1 h 1 min", "1 min 30 s", "running"):
        assert shown in text, shown


def test_an_empty_list_says_how_to_get_a_job_and_a_filtered_one_how_to_see_all():
    client, _ = console(lists())

    assert "gangline submit" in client.get("/console/jobs").text
    assert "Show all jobs" in client.get("/console/jobs?state=failed").text


def test_texts_of_users_are_escaped():
    client, _ = console(lists(job(reason="<script>alert(1)</script>", user='"><img src=x>')))

    text = client.get("/console/jobs").text

    assert "<script>alert" not in text
    assert "<img" not in text


def test_cancelling_names_the_jobs_and_says_what_is_lost_before_it_asks_rest():
    client, gateway = console(
        {
            "GET /v1/training-jobs/a": job("a", name="first"),
            "GET /v1/training-jobs/b": job("b", name="second", state="succeeded"),
        }
    )

    answer = client.post("/console/jobs/cancel", data={"csrf": csrf(), "job": ["a", "b"]})

    assert "Cancel 1 job?" in answer.text
    assert "first" in answer.text
    assert "Already ended: second" in answer.text
    assert "is lost" in answer.text
    assert not any(item[0].startswith("POST") for item in gateway.asked)


def test_confirmed_jobs_are_cancelled_and_the_browser_goes_back_to_its_list():
    client, gateway = console({"POST /v1/training-jobs/a/cancel": job("a")})

    answer = client.post(
        "/console/jobs/cancel",
        data={"csrf": csrf(), "job": "a", "sure": "1", "back": "?state=running"},
    )

    assert answer.status_code == 303
    assert answer.headers["location"] == "/console/jobs?state=running&cancelled=1"
    assert "POST /v1/training-jobs/a/cancel" in [item[0] for item in gateway.asked]


def test_jobs_that_cannot_be_cancelled_are_named_with_the_reason():
    client, _ = console(
        {
            "POST /v1/training-jobs/a/cancel": job("a"),
            "POST /v1/training-jobs/b/cancel": problem(409, "ended", "the job has already ended"),
        }
    )

    answer = client.post(
        "/console/jobs/cancel", data={"csrf": csrf(), "job": ["a", "b"], "sure": "1"}
    )

    assert "1 of 2 jobs could not be cancelled" in answer.text
    assert "the job has already ended" in answer.text


def test_the_way_back_leads_to_no_other_host():
    client, _ = console({"POST /v1/training-jobs/a/cancel": job("a")})

    answer = client.post(
        "/console/jobs/cancel",
        data={"csrf": csrf(), "job": "a", "sure": "1", "back": "//evil.example"},
    )

    assert answer.headers["location"] == "/console/jobs?cancelled=1"


def test_a_click_on_a_head_orders_by_its_column_and_a_second_one_the_other_way_round():
    browser, gateway = console(lists(job(), cursor="7.x"))

    first = browser.get("/console/jobs?team=nlp&order=gpus").text
    again = browser.get("/console/jobs?order=gpus+reverse").text

    assert '?team=nlp&amp;order=gpus+reverse">GPUs ↓</a>' in first
    assert 'aria-sort="descending"' in first
    assert '/console/jobs">GPUs ↑</a>' in again
    asked = [item[1] for item in gateway.asked if item[0] == "GET /v1/training-jobs"]
    assert [(one["order_by"], one["reverse"]) for one in asked] == [("gpus", None), ("gpus", True)]


def test_without_an_order_the_newest_come_first_and_the_head_says_so():
    browser, _ = console(lists(job()))

    text = browser.get("/console/jobs").text

    assert 'aria-sort="descending"><a class="keep" href="/console/jobs?order=created+rev' in text
    assert text.count('aria-sort="descending"') == 1


def test_order_and_columns_are_in_the_address():
    browser, gateway = console(lists(job(), cursor="7.x"))

    text = browser.get("/console/jobs?order=gpus&column=priority&column=mfu&column=nonsense").text

    asked = next(item[1] for item in gateway.asked if item[0] == "GET /v1/training-jobs")
    assert asked["order_by"] == "gpus"
    heads = text[text.index("<thead>") : text.index("</thead>")]
    assert "Priority" in heads
    assert "Team" not in heads
    assert "41.0 %" in text
    assert "order=gpus&amp;column=priority&amp;column=mfu&amp;cursor=7.x" in text


def test_states_are_counted():
    browser, _ = console(lists(job()))

    text = browser.get("/console/jobs?state=running&team=research").text

    assert 'href="/console/jobs?state=failed&amp;team=research"' in text


def test_the_list_is_there_while_rest_cannot_say_the_teams():
    client, _ = console(
        lists(job()) | {"GET /v1/teams": problem(503, "no-state", "quota is newer")}
    )

    answer = client.get("/console/jobs")

    assert answer.status_code == 200
    assert "<option>research</option>" in answer.text, "a team of the token"
