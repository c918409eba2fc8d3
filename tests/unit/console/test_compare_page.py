"""The comparison: what the page has of REST's answer; the curves are drawn by its scripts."""

from __future__ import annotations

import json
import re
from html import unescape
from typing import Any

from gangline_console.formats import NONE
from gangline_console.pages.compare import lines
from gangline_schemas.api.runs import Comparison, Difference, Final, Run, RunPage
from support.builders.console import console
from support.builders.runs import run
from support.fakes.console_gateway import problem

COMPARE = "GET /v1/runs/compare"


def named(run_id: str, **changes: Any) -> Run:
    return run(run_id).model_copy(update={"name": f"run {run_id}", **changes})


def compared(count: int = 2, **changes: Any) -> Comparison:
    ids = [f"r{number}" for number in range(count)]
    values: dict[str, Any] = {
        "runs": [named(run_id) for run_id in ids],
        "differences": [
            Difference(field="gpus", values={run_id: n for n, run_id in enumerate(ids)}),
            Difference(field="hyperparameters.lr", values=dict.fromkeys(ids, "0.1") | {"r1": None}),
        ],
        "metrics": {
            "acc": {each: Final(step=9, value=n / 9, low=0, high=1) for n, each in enumerate(ids)},
            "loss": {"r0": Final(step=9, value=0.125, low=0.0625, high=4)},
        },
        "curves": [],
    }  # fmt: skip
    return Comparison(**(values | changes))


def cells(text: str) -> list[str]:
    """The texts of the table's cells, without marks."""
    found = re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", text, re.DOTALL)
    return [unescape(re.sub(r"<[^>]+>", "", cell)).strip() for cell in found]


def test_runs_are_asked_for_once_without_curves_and_known_to_the_scripts():
    client, gateway = console({COMPARE: compared()})

    text = client.get("/console/compare?runs=r0,r1,r0&run=r1&x=time&smooth=0.5").text

    asked = next(query for path, query, _ in gateway.asked if path == COMPARE)
    assert asked == {"run": ["r0", "r1"], "curves": False}
    shown = re.search(r"data-lines='([^']*)'", text)
    assert shown
    assert json.loads(shown[1]) == [{"id": "r0", "name": "run r0"}, {"id": "r1", "name": "run r1"}]
    assert re.findall(r'data-name="(\w+)"', text) == ["loss", "acc"]
    assert 'value="time" selected' in text
    assert "runs=r0%2Cr1&amp;x=time&amp;smooth=0.5&amp;tab=metrics" in text


def test_the_browser_is_told_the_first_plots_curves_as_its_script_asks_for_them():
    client, _ = console({COMPARE: compared()})

    text = client.get("/console/compare?runs=r0,r1&metric=a/b+c&x=time&first=5&last=nonsense").text

    address = "/v1/runs/overlay?points=600&axis=time&run=r0&run=r1&name=a%2Fb+c&first=5"
    assert unescape(text).count(f'"{address}"') == 2


def test_more_runs_than_a_comparison_takes_are_left_out_with_a_word():
    client, gateway = console({COMPARE: compared()})

    text = client.get("/console/compare?runs=" + ",".join(f"r{n}" for n in range(53))).text

    asked = next(query for path, query, _ in gateway.asked if path == COMPARE)
    assert len(asked["run"]) == 50
    assert "3 more are left out" in text


def test_runs_of_one_name_have_their_ids_in_plots():
    names = {"a-1": "a", "a-2": "a", "b-1": "b", "c-1": ""}
    found = lines([named(run_id, name=name) for run_id, name in names.items()])
    assert [line["name"] for line in found] == ["a-1", "a-2", "b", "c-1"]


def test_chosen_metrics_are_drawn_in_their_order():
    client, _ = console({COMPARE: compared()})

    text = client.get("/console/compare?runs=r0&metric=acc&metric=later").text

    assert re.findall(r'data-name="(\w+)"', text) == ["acc", "later"]


def test_differences_have_a_column_for_each_run_and_mark_what_is_not_the_first_ones():
    client, _ = console({COMPARE: compared()})

    text = client.get("/console/compare?runs=r0,r1&tab=config").text

    table = text.partition('id="differences"')[2].partition("</table>")[0]
    assert cells(table) == [
        "Field", "run r0", "run r1", "gpus", "0", "≠differs: 1", "hyperparameters.lr", "0.1",
        f"≠differs: {NONE}",
    ]  # fmt: skip


def test_of_many_runs_each_is_a_row():
    client, _ = console({COMPARE: compared(7)})

    text = client.get("/console/compare?runs=r0,r1&tab=config").text

    table = text.partition('id="differences"')[2].partition("</table>")[0]
    assert cells(table)[:6] == ["Run", "gpus", "hyperparameters.lr", "run r0", "0", "0.1"]


def test_metrics_have_last_values_with_their_range_and_the_best_marked():
    client, _ = console({COMPARE: compared()})

    text = client.get("/console/compare?runs=r0,r1&tab=metrics").text

    table = text.partition('id="finals"')[2].partition("</table>")[0]
    assert cells(table) == [
        "Metric", "run r0", "run r1", "loss", "0.1250.0625 to 4, step 9", NONE,
        "acc", "00 to 1, step 9", "★best 0.11110 to 1, step 9",
    ]  # fmt: skip


def test_digests_of_code_are_shown_short_with_the_whole_one_on_hover():
    digest = "ab" * 32
    differences = [
        Difference(field="code_ref", values={"r0": "c" * 40, "r1": None}),
        Difference(field="code_diff_digest", values={"r0": digest, "r1": None}),
    ]
    same = {"data_snapshot": "c4"}
    client, _ = console({COMPARE: compared(differences=differences, same=same)})

    text = client.get("/console/compare?runs=r0,r1&tab=config").text

    table = text.partition('id="code"')[2].partition("</table>")[0]
    assert f'title="{digest}"' in table
    assert cells(table)[3:] == [
        "Commit", "cccccccccccc…", f"≠differs: {NONE}", "Digest of the uncommitted diff",
        "abababababab…", f"≠differs: {NONE}", "Data snapshot", "c4", "c4",
    ]  # fmt: skip


def test_code_and_data_that_all_runs_share_are_shown():
    same = {"image": "torch:2.9", "code_diff_digest": "ab" * 32}
    client, _ = console({COMPARE: compared(differences=[], same=same)})

    text = client.get("/console/compare?runs=r0,r1&tab=config").text

    table = text.partition('id="code"')[2].partition("</table>")[0]
    assert cells(table)[3:] == [
        "Digest of the uncommitted diff", "abababababab…", "abababababab…",
        "Image", "torch:2.9", "torch:2.9",
    ]  # fmt: skip
    assert "/console/jobs/r0?tab=config" in text


def test_runs_that_name_no_code_and_no_data_say_so():
    client, _ = console({COMPARE: compared()})

    assert "None of these runs names" in client.get("/console/compare?runs=r0&tab=config").text


def test_a_run_that_is_not_there_is_named_and_the_others_can_be_compared():
    known = RunPage(runs=[named("r0")], cursor=None)
    client, _ = console(
        {COMPARE: problem(404, "not-found", "there is no such run"), "GET /v1/runs": known}
    )

    answer = client.get("/console/compare?runs=r0,lost-1")

    assert answer.status_code == 404
    assert "lost-1 in history" in answer.text
    assert "/console/compare?runs=r0" in answer.text


def test_without_runs_the_page_says_where_to_choose_them():
    client, _ = console()

    text = client.get("/console/compare").text

    assert "Choose runs" in text
    assert "gangline compare" in text


def test_texts_of_users_are_escaped_also_in_what_scripts_read():
    evil = "'><script>alert(1)</script>"
    metrics = {evil: {"r0": Final(step=1, value=1, low=1, high=1)}}
    differences = [Difference(field=evil, values={"r0": evil, "r1": evil + "2"})]
    runs = [named("r0", name=evil), named("r1", user=evil)]
    found = compared(runs=runs, metrics=metrics, differences=differences)
    client, _ = console({COMPARE: found})

    for tab in ("curves", "config", "metrics", "axes"):
        text = client.get(f"/console/compare?runs=r0,r1&tab={tab}").text
        assert "<script>alert" not in text, tab
        assert "'>" not in text.partition("data-lines='")[2].partition("'>")[0], tab
