"""The table of runs: filters, orders and columns in the address; best values; CSV."""

from __future__ import annotations

import csv
import html
import io
import re
import threading
from typing import Any

import pytest
from pydantic import BaseModel

from gangline_console.client import ApiError
from gangline_console.ordering import next_order
from gangline_console.pages.runs import table
from gangline_console.pages.runs.columns import better, column, metric_names, plain, usual
from gangline_schemas.api.cluster import TeamList
from gangline_schemas.api.problem import Problem
from gangline_schemas.api.runs import Final, Run, RunPage
from gangline_schemas.base import FieldError
from support.builders.console import console
from support.builders.runs import run

RUNS = "GET /v1/runs"


def final(value: float) -> Final:
    return Final(step=9, value=value, low=value, high=4)


def listed(*runs: Run, cursor: str | None = None, **losses: float) -> dict[str, BaseModel]:
    metrics = {"loss": {run_id: final(value) for run_id, value in losses.items()}}
    page = RunPage(runs=[*runs], cursor=cursor, metrics=metrics if losses else {})
    return {RUNS: page, "GET /v1/teams": TeamList(teams=[])}


def refused(field: str, message: str) -> ApiError:
    return ApiError(
        Problem(
            type="urn:gangline:problem:invalid", title="invalid", status=422, detail="invalid",
            instance="urn:gangline:request:0", errors=(FieldError(field=field, message=message),),
        )
    )  # fmt: skip


def test_the_view_of_the_address_is_asked_of_rest_and_kept_in_links():
    client, gateway = console(listed(run("a", lr="0.1"), cursor="7.x"))

    text = client.get(
        "/console/runs?where=gpus+>+1&order=gpu_hours+DESC&col=gpus&col=params.lr&size=25&sel=a,b"
    ).text

    asked = next(query for path, query, _ in gateway.asked if path == RUNS)
    assert asked == {
        "state": None, "team": None, "name": None, "where": "gpus > 1", "limit": 25,
        "order_by": "gpu_hours DESC", "metrics": True, "cursor": None,
    }  # fmt: skip
    kept = "where=gpus+%3E+1&amp;order=gpu_hours+DESC&amp;col=gpus&amp;col=params.lr&amp;size=25"
    assert f"{kept}&amp;sel=a%2Cb&amp;page=2&amp;cursor=7.x" in text


def test_a_page_leads_to_those_before_and_after_it():
    client, _ = console(listed(run("a"), cursor="d"))

    def linked(address: str) -> dict[str, str]:
        text = client.get(f"/console/runs{address}").text
        found = re.findall(r'rel="(prev|next)" href="(?:/console/runs)?([^"]*)"', text)
        return {rel: html.unescape(target) for rel, target in found}

    assert linked("") == {"next": "?page=2&cursor=d"}
    assert linked("?page=2&cursor=b") == {"prev": "", "next": "?page=3&cursor=d&before=b"}
    third = linked("?page=3&cursor=c&before=b")
    assert third == {"prev": "?page=2&cursor=b", "next": "?page=4&cursor=d&before=b&before=c"}
    assert "prev" not in linked("?page=30&cursor=c")


def test_columns_are_params_that_differ_and_metrics_unless_some_are_chosen():
    client, _ = console(listed(run("a", lr="0.1", opt="sgd"), run("b", lr="0.2", opt="sgd"), a=2.0))

    usual = client.get("/console/runs").text
    chosen = client.get("/console/runs?col=params.opt&col=nonsense").text

    assert 'data-key="params.lr"' in usual
    assert 'data-key="metrics.loss"' in usual
    assert 'data-key="params.opt"' not in usual
    assert 'data-key="params.opt"' in chosen
    assert 'data-key="params.lr"' not in chosen


def test_the_best_of_a_metric_is_marked_where_its_name_says_what_is_good():
    client, _ = console(listed(run("a"), run("b"), a=2.0, b=1.5))

    rows = client.get("/console/runs").text.split("<tr data-row")

    assert ["★" in row for row in rows[1:]] == [False, True]
    assert [better(name) for name in ("val_loss", "eval/accuracy", "lr")] == [
        "lowest", "highest", "",
    ]  # fmt: skip


def test_pinned_runs_come_first_and_once():
    client, gateway = console(listed(run("a"), run("b")))

    text = client.get("/console/runs?pin=b'").text

    asked = [query for path, query, _ in gateway.asked if path == RUNS]
    assert "run_id IN ('b''')" in [query.get("where") for query in asked]
    assert text.count('data-run="a"') == 1


@pytest.mark.parametrize(
    ("field", "query", "way_out"),
    [
        ("where", "where=gpus+~+1", "remove the filter"),
        ("order_by", "order=nothing", "Show the newest first"),
    ],
)
def test_a_wrong_filter_or_order_is_explained_with_the_way_out(
    field: str, query: str, way_out: str
):
    answers = listed()
    client, _ = console({**answers, RUNS: refused(field, "at character 6: '~' has no meaning")})

    text = client.get(f"/console/runs?{query}").text

    assert "at character 6" in text
    assert way_out in text
    if field == "where":
        assert "gpus ~ 1\n     ^" in text


def test_other_errors_are_no_errors_of_the_filter():
    client, _ = console({**listed(), RUNS: refused("cursor", "is not valid")})

    assert client.get("/console/runs?cursor=x").status_code == 422


def test_an_empty_list_says_how_to_get_a_run_and_a_filtered_one_how_to_see_all():
    client, _ = console(listed())

    assert "gangline submit" in client.get("/console/runs").text
    assert "Show all runs" in client.get("/console/runs?name=none").text


def test_texts_of_users_are_escaped():
    evil = run("a", **{"<b>lr": "<script>alert(1)</script>"}).model_copy(
        update={"name": "<img src=x>", "user": "\"'><i>", "tags": {"<u>": "<s>"}}
    )
    client, _ = console(listed(evil, run("b"), a=1.0))

    text = client.get("/console/runs?col=tags.<u>&col=params.<b>lr&col=user").text

    for mark in ("<script>alert", "<img src", "<b>lr", "<i>", "<u>", "<s>"):
        assert mark not in text, mark


def test_csv_has_all_runs_of_the_filter_with_all_values_in_full():
    first = run("a", lr="=1+1").model_copy(update={"cost": 2.5})
    client, gateway = console(listed(first, run("b"), a=1 / 3))

    answer = client.get("/console/runs.csv?where=gpus+>+1")

    rows = [*csv.DictReader(io.StringIO(answer.text))]
    assert "attachment" in answer.headers["content-disposition"]
    assert [row["run_id"] for row in rows] == ["a", "b"]
    assert (rows[0]["metrics.loss"], rows[0]["cost"], rows[0]["gpu_hours"]) == (
        repr(1 / 3), "2.5", "2.0",
    )  # fmt: skip
    assert (rows[0]["params.lr"], rows[1]["params.lr"]) == ("'=1+1", "")
    asked = [query for path, query, _ in gateway.asked if path == RUNS]
    assert (asked[0]["where"], asked[0]["limit"]) == ("gpus > 1", 200)


def test_other_pages_do_not_wait_for_a_long_csv(monkeypatch: pytest.MonkeyPatch):
    made_by = []

    def noted(*given: Any) -> str:
        made_by.append(threading.get_ident())
        return table(*given)

    monkeypatch.setattr("gangline_console.pages.runs.table", noted)
    client, _ = console(listed(run("a")))
    assert client.get("/console/runs.csv").text.startswith("run_id")
    assert made_by != [threading.get_ident()]


def test_numbers_are_no_formulas():
    assert [plain(text) for text in ("-1e-3", "-x", "+5", "@a", "plain")] == [
        "-1e-3", "'-x", "+5", "'@a", "plain",
    ]  # fmt: skip


def test_a_click_on_a_head_orders_by_best_then_worst_then_not():
    loss, hours, odd = column("metrics.eval loss"), column("gpu_hours"), column("params.a`b")
    assert loss
    assert hours
    assert odd
    assert next_order(loss.ways, "") == "metrics.`eval loss`"
    assert next_order(loss.ways, "metrics.`eval loss`") == "metrics.`eval loss` DESC"
    assert next_order(loss.ways, "metrics.`eval loss` DESC") == ""
    assert next_order(hours.ways, "other") == "gpu_hours DESC"
    assert odd.ways == {}, "a name with a backtick cannot be written"


def test_the_usual_columns_have_losses_first_and_nothing_that_the_trainer_says_of_itself():
    names = ("acc", "busy_s", "checkpoint_bytes", "latency_s", "loss", "step_s")
    metrics = {name: {"a": final(1)} for name in names}

    assert metric_names(metrics) == [
        "loss", "acc", "latency_s", "busy_s", "checkpoint_bytes", "step_s",
    ]  # fmt: skip
    shown = [key for key in usual([run("a")], metrics) if key.startswith("metrics.")]
    assert shown == ["metrics.loss", "metrics.acc", "metrics.latency_s"]
