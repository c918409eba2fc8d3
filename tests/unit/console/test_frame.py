"""The frame of all pages: who may see them, errors that say what to do, headers, static files."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gangline_console.assets import Assets
from gangline_schemas.api.cluster import TeamList
from gangline_schemas.api.jobs import JobCounts, JobPage
from support.builders.console import console, csrf, job
from support.fakes.console_gateway import away, problem

LISTS = {
    "GET /v1/training-jobs": JobPage(jobs=[], cursor=None),
    "GET /v1/training-jobs/counts": JobCounts(total=0, states={}),
    "GET /v1/teams": TeamList(teams=[]),
}


def test_a_request_without_a_token_is_sent_to_sign_in():
    client, gateway = console(LISTS)

    answer = client.get("/console/jobs", headers={"authorization": ""})

    assert answer.status_code == 401
    assert 'href="/session?next=/console/"' in answer.text
    assert gateway.asked == []


def test_each_page_names_the_user_and_has_the_security_headers():
    client, _ = console(LISTS)

    answer = client.get("/console/jobs")

    assert "ana" in answer.text
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["cache-control"] == "no-store"


def test_no_page_has_what_the_security_policy_forbids():
    client, _ = console({**LISTS, "GET /v1/training-jobs/a": job("a")})

    for path in ("/console/jobs", "/console/jobs/a", "/console/components", "/console/nothing"):
        text = client.get(path).text
        assert not re.search(r"<style|style=|<script(?![^>]*src=)|\son[a-z]+=", text), path


@pytest.mark.parametrize(
    ("error", "status", "advice"),
    [
        (problem(403, "forbidden", "the token does not belong to this team"), 403, "token of this"),
        (problem(404, "not-found", "there is no such job"), 404, "Check the address"),
        (problem(429, "too-many", "your token is limited to 100"), 429, "Wait some seconds"),
        (away(), 503, "tries again"),
        (RuntimeError("a bug"), 500, "console&#39;s log"),
    ],
)
def test_an_error_says_what_to_do(error: Exception, status: int, advice: str):
    client, _ = console({**LISTS, "GET /v1/training-jobs/a": error})

    answer = client.get("/console/jobs/a")

    assert answer.status_code == status
    assert advice in answer.text
    assert "a bug" not in answer.text


def test_a_gateway_that_is_away_from_the_start_has_a_page_that_tries_again():
    client, _ = console({"GET /v1/whoami": away()})

    answer = client.get("/console/jobs")

    assert answer.status_code == 503
    assert answer.headers["refresh"] == "5"


def test_addresses_that_lead_nowhere_say_so():
    client, _ = console()

    assert client.get("/console/nothing").status_code == 404
    assert client.get("/elsewhere").status_code == 404


@pytest.mark.parametrize(
    ("fields", "status"),
    [({}, 403), ({"csrf": "0" * 64}, 403), ({"csrf": csrf() + "x"}, 403)],
)
def test_a_form_without_its_token_changes_nothing(fields: dict[str, str], status: int):
    client, gateway = console({**LISTS, "POST /v1/training-jobs/a/cancel": job("a")})

    answer = client.post("/console/jobs/cancel", data={"job": "a", "sure": "1", **fields})

    assert answer.status_code == status
    assert not any(asked[0].startswith("POST") for asked in gateway.asked)


def test_a_form_of_another_kind_is_rejected():
    client, _ = console(LISTS)

    answer = client.post("/console/jobs/cancel", json={"csrf": csrf()})

    assert answer.status_code == 415


def test_static_files_may_be_kept_forever_under_the_address_of_their_version():
    client, _ = console()
    url = Assets.load().url("console.css")

    answer = client.get(url)
    other = client.get(url.replace(url.split("/")[3], "0" * 12))

    assert "immutable" in answer.headers["cache-control"]
    assert other.headers["cache-control"] == "no-cache"
    assert other.text == answer.text


def test_no_file_besides_the_static_ones_is_served():
    client, _ = console()

    for name in ("../app.py", "pages/jobs/__init__.py", "pages/jobs/page.html", "%2e%2e/app.py"):
        assert client.get(f"/console/static/0/{name}").status_code == 404, name


def test_a_part_above_a_limit_is_asked_again():
    browser, gateway = console(LISTS)
    tries: list[str] = []
    send = gateway.send

    async def limited(token: str, method: str, path: str, *more: Any) -> tuple[int, str]:
        tries.append(path)
        if path == "/v1/training-jobs" and tries.count(path) < 3:
            raise problem(429, "too-many", "your token is limited to 4 history queries at once")
        return await send(token, method, path, *more)

    gateway.send = limited  # type: ignore[method-assign]
    assert browser.get("/console/jobs").status_code == 200
    assert tries.count("/v1/training-jobs") == 3


@pytest.mark.parametrize(
    ("referer", "back"),
    [
        ("http://console/console/jobs/a?tab=logs", "/console/jobs/a?tab=logs"),
        ("", "/console/jobs"),
        ("http://elsewhere/page", "/console/jobs"),
        ("http://[", "/console/jobs"),
    ],
)
def test_a_form_that_failed_leads_back_to_its_page_and_is_not_sent_again(referer: str, back: str):
    client, _ = console({"GET /v1/training-jobs/a": away()})

    answer = client.post(
        "/console/jobs/cancel", data={"csrf": csrf(), "job": "a"}, headers={"referer": referer}
    )

    assert answer.status_code == 503
    assert "refresh" not in answer.headers
    assert "tries again" not in answer.text
    assert f'href="{back}">Go back' in answer.text


@pytest.mark.parametrize(
    "error", [away(), problem(503, "history-away", "x"), problem(429, "m", "x")]
)
def test_a_part_whose_source_is_away_or_busy_does_not_take_the_page_with_it(error: Exception):
    client, _ = console(
        {"GET /v1/training-jobs": JobPage(jobs=[], cursor=None)}
        | {f"GET /v1/{name}": error for name in ("queue", "alerts", "incidents")}
    )

    answer = client.get("/console/overview")

    assert answer.status_code == 200
    assert "Incidents cannot be read now" in answer.text
