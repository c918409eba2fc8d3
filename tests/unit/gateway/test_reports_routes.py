"""The routes of reports: JSON or a page, whose rows a caller sees, periods that are refused."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from typing import Any

import httpx
import pytest

from gangline_gateway.reports import page
from gangline_gateway.reports.facts import Facts, Gang, Job, NodeChange, Period, Quota, RunMfu
from gangline_gateway.reports.source import TooMuchError
from gangline_service.tokens import Principal, Role
from support.clients.routes import ask, history_of, with_history

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
UTILIZATION, WEEKLY = "/v1/reports/utilization", "/v1/reports/weekly"
BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
EVIL = '<script src="https://evil.example">&'
ADMIN = Principal(name="root", role=Role.ADMIN, teams=frozenset())
VISION = Principal(name="bob", role=Role.MEMBER, teams=frozenset({"vision"}))


def happened(period: Period) -> Facts:
    """Two teams with a job each over the whole period."""
    jobs = tuple(
        Job(
            EVIL if team == "nlp" else "theirs", team, "sft", 2, 50, "", period.since,
            gangs=(Gang(1, 2, period.since, period.since),),
        )
        for team in ("nlp", "vision")
    )  # fmt: skip
    return Facts(
        period,
        jobs=jobs,
        nodes=(NodeChange("n", period.since, 8),),
        quotas=(Quota("nlp", 8, 4), Quota("vision", 8, 8)),
        mfu=(RunMfu(EVIL, "nlp", 0.1, 5), RunMfu("theirs", "vision", 0.2, 5)),
    )


class Source:
    """Answers with what a function makes of a period, and keeps what was asked."""

    def __init__(self, make: Callable[[Period], Facts]) -> None:
        self._make = make
        self.asked: list[Period] = []

    def facts(self, period: Period, *, gpu_use: bool = True) -> Facts:
        self.asked.append(period)
        return self._make(period)


class Routes:
    """Asks the routes as one caller."""

    def __init__(
        self,
        source: Source,
        caller: Principal = ADMIN,
        clock: Callable[[], datetime] = lambda: NOW,
    ) -> None:
        self._app = with_history(history_of(reports=source), clock=clock)
        self.caller = caller

    def get(self, path: str, **options: Any) -> httpx.Response:
        return ask(self._app, self.caller, path, **options)


class Page(HTMLParser):
    """Tags and words of a page; fails on what the HTML does not close."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.fetched: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.fetched += [name for name, _ in attrs if name in {"src", "href", "style", "onload"}]
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.mark.parametrize(
    ("path", "made"), [(UTILIZATION, "utilization_page"), (WEEKLY, "weekly_page")]
)
def test_others_are_answered_while_a_page_is_made(
    monkeypatch: pytest.MonkeyPatch, path: str, made: str
) -> None:
    plain, made_by = getattr(page, made), list[int]()

    def noted(report: object) -> str:
        made_by.append(threading.get_ident())
        return str(plain(report))

    monkeypatch.setattr(page, made, noted)
    assert "<html" in Routes(Source(happened)).get(path, headers=BROWSER).text
    assert len(made_by) == 1
    assert threading.get_ident() not in made_by


def test_json_is_the_default_and_the_period_is_what_was_asked() -> None:
    source = Source(happened)
    http = Routes(source)
    found = http.get(UTILIZATION).json()
    http.get(UTILIZATION, params={"from": "2026-11-20T00:00:00Z", "to": "2026-11-20T06:00:00Z"})
    week = http.get(WEEKLY, params={"week": "2026-W46"}).json()
    assert [team["team"] for team in found["teams"]] == ["nlp", "vision"]
    assert found["cluster"]["gpu_hours_total"] == 8 * 24
    assert found["teams"][0]["gpu_hours_allocated"] == 2 * 24
    first, second, before, this = [
        *source.asked[:2],
        *sorted(source.asked[2:], key=lambda one: one.since),
    ]
    assert first == Period(NOW - timedelta(days=1), NOW)
    assert (second.length_s, second.since.day) == (6 * 3600, 20)
    assert this.until == datetime(2026, 11, 16, tzinfo=UTC)
    assert before.until == this.since
    assert (week["week"], week["this"]["low_mfu"][0]["name"]) == ("2026-W46", "sft")


def test_the_same_question_within_ten_seconds_has_the_same_answer() -> None:
    moved = [NOW]
    source = Source(happened)
    http = Routes(source, clock=lambda: moved[0])
    since = {"from": "2026-11-20T00:00:00Z"}
    first = [http.get(UTILIZATION, params=since).text, http.get(WEEKLY).text]
    moved[0] += timedelta(seconds=9)
    later = {"from": "2026-11-20T00:00:09.2Z"}
    assert [http.get(UTILIZATION, params=later).text, http.get(WEEKLY).text] == first
    assert len(source.asked) == 3
    moved[0] += timedelta(seconds=1)
    assert http.get(WEEKLY).json()["this"]["until"] == "2026-11-21T12:00:10Z"
    http.get(UTILIZATION)
    assert len(source.asked) == 6
    http.caller = VISION
    assert EVIL not in http.get(WEEKLY).json()["this"]["low_mfu"][0]["job_id"]


def test_a_member_sees_its_own_teams_rows() -> None:
    http = Routes(Source(happened), VISION)
    for path in (UTILIZATION, WEEKLY):
        for headers in ({}, BROWSER):
            text = http.get(path, headers=headers).text
            assert "vision" in text
            assert "nlp" not in text
    assert http.get(UTILIZATION).json()["cluster"]["gpus_total"] == 8


@pytest.mark.parametrize("path", [UTILIZATION, WEEKLY])
def test_a_browser_gets_a_page_that_runs_and_fetches_nothing(path: str) -> None:
    http = Routes(Source(happened))
    answer = http.get(path, headers=BROWSER)
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    page = Page(answer.text)
    assert (page.tags.count("html"), page.fetched) == (1, [])
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert ("25.0 %" if path == WEEKLY else "50.0 %") in page.words
    assert (EVIL in page.words) == (path == WEEKLY)  # a job's id, as text


def test_pages_and_json_of_nothing() -> None:
    http = Routes(Source(Facts))
    for path in (UTILIZATION, WEEKLY):
        assert http.get(path).status_code == 200
        page = Page(http.get(path, headers=BROWSER).text)
        assert not {"nan", "None", "null", "inf"} & {word.strip() for word in page.words}


@pytest.mark.parametrize(
    ("path", "query", "field"),
    [
        (UTILIZATION, {"from": "2026-11-21T13:00:00Z"}, "from"),
        (UTILIZATION, {"from": "2025-11-21T13:00:00Z"}, "from"),
        (UTILIZATION, {"from": "2026-11-21T01:00:00"}, "from"),
        (UTILIZATION, {"to": "yesterday"}, "query.to"),
        (WEEKLY, {"week": "2026-W60"}, "week"),
        (WEEKLY, {"week": "2026-W50"}, "week"),
        (WEEKLY, {"week": "47"}, "query.week"),
    ],
)
def test_what_is_no_period_is_refused_with_the_field(
    path: str, query: dict[str, str], field: str
) -> None:
    http = Routes(Source(happened))
    answer = http.get(path, params=query)
    assert answer.status_code == 422
    assert [error["field"] for error in answer.json()["errors"]] == [field]


def test_a_period_with_too_much_in_it_says_the_way_out() -> None:
    def refuse(_: Period) -> Facts:
        raise TooMuchError("there are more than 100,000 jobs: ask for a shorter period")

    http = Routes(Source(refuse))
    answer = http.get(WEEKLY)
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "week")
    assert "shorter period" in answer.json()["detail"]
