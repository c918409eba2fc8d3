"""Submit: errors at their lines, the form in step with the file, the plan, one job a click."""

from __future__ import annotations

import html
import json
import re
from typing import Any

import pytest
from pydantic import BaseModel

from gangline_console.pages.submit.editing import EditError, set_field
from gangline_console.pages.submit.examples import examples
from gangline_schemas.api.cluster import TeamList
from gangline_schemas.api.jobs import DryRun
from gangline_schemas.api.questions import PriceRange, QuotaNumbers, StartsOn, Victim, WhatIf
from gangline_schemas.base import FieldError
from gangline_schemas.job import JobSpec
from gangline_schemas.job_file import read_document
from support.builders.console import AT, Browser, console, csrf, job
from support.fakes.console_gateway import away, problem

FILE = """\
# a comment
name: llama   # its name
team: research
command: [python, -m, gangline_worker.training]
resources: {gpus: 4}
hyperparameters:
  lr: 3e-4   # found by search
  steps: 100

checkpoint:
  interval_minutes: 5
"""
SPEC = JobSpec.model_validate(read_document(FILE).content)


def answers(what_if: BaseModel | Exception | None = None, **dry: Any) -> dict[str, Any]:
    values = {"job_id": "llama-0", "gpus": 4, "notes": [], "spec": SPEC} | dry
    return {
        "POST /v1/training-jobs": DryRun.model_validate(values),
        "POST /v1/what-if": what_if or WhatIf(starts="now", gpus=4, start=AT),
        "GET /v1/teams": TeamList(teams=[]),
    }


def checked(browser: Browser, text: str, **more: str | list[str]) -> tuple[dict[str, Any], str]:
    answer = browser.post("/console/submit/check", data={"csrf": csrf(), "text": text, **more})
    assert answer.status_code == 200, answer.text
    found = re.search(r"data-result='([^']*)'", answer.text)
    assert found is not None
    return json.loads(html.unescape(found[1])), answer.text


def test_each_error_has_its_field_and_line_and_nothing_is_asked_of_rest() -> None:
    browser, gateway = console()
    text = FILE.replace("gpus: 4", "gpus: -1").replace("interval_minutes", "interval_minuts")
    result, shown = checked(browser, text)
    assert [(item["field"], item["line"]) for item in result["errors"]] == [
        ("resources.gpus", 5),
        ("checkpoint.interval_minuts", 11),
    ]
    assert "did you mean interval_minutes?" in shown
    assert not any(item[0].startswith("POST") for item in gateway.asked)


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [("name: [\n", 2, "is not YAML"), ("a: 1\na: 2", 2, "given twice"), ("- a", None, "must hold")],
)
def test_a_text_that_is_no_job_file_says_where(text: str, line: int | None, said: str) -> None:
    browser, _ = console()
    result, shown = checked(browser, text)
    assert [(item["line"], said in item["message"]) for item in result["errors"]] == [(line, True)]
    assert result["readable"] is False
    assert said in shown


def test_errors_of_rest_get_the_lines_of_their_fields() -> None:
    wrong = problem(403, "forbidden", "the token does not belong to this team")
    wrong.errors = (FieldError(field="team", message="the token does not belong to this team"),)
    browser, _ = console(answers() | {"POST /v1/training-jobs": wrong})
    result, _ = checked(browser, FILE)
    assert [(item["field"], item["line"]) for item in result["errors"]] == [("team", 3)]


def test_a_folder_cannot_be_sent_and_the_page_says_how_to() -> None:
    browser, _ = console(answers())
    result, shown = checked(browser, FILE + "workdir: .\n")
    assert [(item["field"], item["line"]) for item in result["errors"]] == [("workdir", 12)]
    assert "gangline submit FILE" in shown
    known = FILE + "workdir: .\ncode_bundle: " + "a" * 64 + "\n"
    assert checked(browser, known)[0]["errors"] == []


def test_the_form_changes_one_field_of_the_file_and_shows_all() -> None:
    browser, _ = console(answers())
    result, _ = checked(browser, FILE, field="resources.gpus", value="8")
    assert result["text"] == FILE.replace("gpus: 4", "gpus: 8")
    assert result["values"]["resources.gpus"] == "8"
    assert result["values"]["hyperparameters"] == "lr: 0.0003\nsteps: 100"
    assert result["values"]["command"] == "[python, -m, gangline_worker.training]"
    both, _ = checked(browser, FILE, field=["name", "priority"], value=["b", "5"])
    assert both["text"] == FILE.replace("llama", "b") + "priority: 5\n"
    wrong, _ = checked(browser, FILE, field="resources.gpus", value="many")
    assert [item["field"] for item in wrong["errors"]] == ["resources.gpus"]


def test_the_plan_says_when_where_whom_it_stops_its_price_and_the_team_s_room() -> None:
    found = WhatIf(
        starts="after_preemption", gpus=4, start=AT, cost_gpu_seconds=7200, value_gpu_seconds=9000,
        nodes=(StartsOn(node_id="n1", gpus=4),), price_per_hour=PriceRange(least=8, most=10),
        preempts=(
            Victim(job_id="cheap-1", team="research", gpus=2, deadline=AT),
            Victim(gpus=2, deadline=AT),
        ),
        quota=QuotaNumbers(allocated=6, ceiling=16, limit=12, borrow_limit=4),
    )  # fmt: skip
    timed = SPEC.model_copy(update={"expected_runtime_hours": 2.0})
    browser, _ = console(answers(found, spec=timed))
    _, shown = checked(browser, FILE)
    for text in (
        "starts after preemption", "n1", "4 GPUs", "8.00 to 10.00 an hour",
        "16.00 to 20.00 for 2 h",
        "research uses 6 of the 16 GPUs", "limit 12, may borrow 4; with this job 10", "cheap-1",
        "of another team", "2 GPU-h are lost",
    ):  # fmt: skip
        assert text in shown, text


def test_a_job_that_quota_would_reject_cannot_be_submitted() -> None:
    never = WhatIf(starts="never", gpus=4, message="99/8 GPUs", notes=("99/8 GPUs",))
    browser, _ = console(answers(never, notes=["99/8 GPUs"], rejected=True))
    result, shown = checked(browser, FILE)
    assert (result["blocked"], result["errors"]) == (True, [])
    assert "does not start" in shown
    assert checked(console(answers())[0], FILE)[0]["blocked"] is False


def test_without_an_answer_about_its_start_a_job_may_still_be_submitted() -> None:
    away = problem(503, "no-answer", "2 questions are being answered; try again")
    browser, _ = console(answers(away))
    result, shown = checked(browser, FILE)
    assert result["errors"] == []
    assert "It may be submitted" in shown


def test_a_click_submits_once_with_a_key_of_this_page_and_job() -> None:
    browser, gateway = console(answers() | {"POST /v1/training-jobs": job("llama-1")})
    form = {"csrf": csrf(), "text": FILE, "nonce": "n0"}
    for text in (FILE, FILE, FILE.replace("gpus: 4", "gpus: 8")):
        done = browser.post("/console/submit", data=form | {"text": text})
        assert (done.status_code, done.headers["location"]) == (303, "/console/jobs/llama-1")
    assert gateway.keys[0] == gateway.keys[1] != gateway.keys[2]
    sent = [body for path, _, body in gateway.asked if path == "POST /v1/training-jobs"]
    assert JobSpec.model_validate(sent[0]) == SPEC


def test_a_rejected_submission_shows_the_file_with_its_errors_again() -> None:
    wrong = problem(422, "rejected", "99 GPUs are above the team's 8")
    browser, _ = console(answers() | {"POST /v1/training-jobs": wrong})
    done = browser.post("/console/submit", data={"csrf": csrf(), "text": FILE, "nonce": "n0"})
    assert done.status_code == 422
    assert "above the team&#39;s 8" in done.text
    assert "# a comment" in done.text
    assert 'value="n0"' in done.text
    assert browser.post("/console/submit", data={"text": FILE}).status_code == 403


def test_a_job_is_submitted_again_from_its_own_file() -> None:
    browser, _ = console(answers() | {"GET /v1/training-jobs/llama-0": job("llama-0", spec=SPEC)})
    shown = html.unescape(browser.get("/console/submit?from=llama-0").text)
    text = re.search(r'<textarea id="text"[^>]*>\n(.*?)</textarea>', shown, re.DOTALL)
    assert text is not None
    assert JobSpec.model_validate(read_document(text[1]).content) == SPEC
    gone, _ = console(answers() | {"GET /v1/training-jobs/old": job("old", spec=None)})
    assert "is not known any more" in gone.get("/console/submit?from=old").text


def test_hostile_texts_are_escaped_in_the_editor_the_form_and_the_errors() -> None:
    browser, _ = console(answers())
    evil = "</textarea><script>alert(1)</script>'\"><img src=x>"
    for text in (f"name: {json.dumps(evil)}\n", evil, f"{json.dumps(evil)}: 1\n"):
        page = browser.post("/console/submit", data={"csrf": csrf(), "text": text, "nonce": "n"})
        part = checked(browser, text)[1]
        for shown in (page.text, part):
            assert "<script>alert" not in shown
            assert "<img" not in shown


@pytest.mark.parametrize("name", sorted(examples()))
def test_each_example_can_be_submitted_from_a_browser(name: str) -> None:
    browser, _ = console(answers())
    shown = browser.get(f"/console/submit?example={name}").text
    assert "name: " + name in shown
    assert "data-line" not in shown, "it has no errors"


EDITS: list[tuple[str, Any, str, str]] = [
    ("name", "b", "name: llama   # its name", "name: b   # its name"),
    ("resources.min_gpus", 1, "{gpus: 4}", "{gpus: 4, min_gpus: 1}"),
    ("hyperparameters.lr", None, "  lr: 3e-4   # found by search\n", ""),
    ("hyperparameters.wd", 0.1, "steps: 100\n", "steps: 100\n  wd: 0.1\n"),
    ("checkpoint.interval_minutes", None, "checkpoint:\n  interval_minutes: 5\n", ""),
    ("run", "a\nb\n", "minutes: 5\n", "minutes: 5\nrun: |\n  a\n  b\n"),
    ("env", {"A": "no", "B": "3e-4"}, "minutes: 5\n", "minutes: 5\nenv:\n  A: no\n  B: '3e-4'\n"),
]


@pytest.mark.parametrize(("field", "value", "before", "after"), EDITS)
def test_an_edit_leaves_the_rest_of_the_file(
    field: str, value: Any, before: str, after: str
) -> None:
    assert set_field(FILE, field, value) == FILE.replace(before, after)


def test_what_a_form_cannot_change_safely_is_left_to_the_user() -> None:
    text = "base: &base {gpus: 1}\nresources: *base\n"
    with pytest.raises(EditError, match="by hand"):
        set_field(text, "resources.gpus", 2)
    browser, _ = console(answers())
    result, _ = checked(browser, text, field="resources.gpus", value="2")
    assert (result["text"], "by hand" in result["problem"]) == (text, True)


@pytest.mark.parametrize(
    ("error", "status"),
    [(problem(503, "no-bus", "Kafka does not answer"), 503), (away(), 503),
     (problem(429, "too-many", "limited to 100 a second"), 429)],
)  # fmt: skip
def test_a_submission_that_was_not_answered_keeps_the_text(error: Exception, status: int) -> None:
    browser, _ = console(answers() | {"POST /v1/training-jobs": error})
    done = browser.post("/console/submit", data={"csrf": csrf(), "text": FILE, "nonce": "n0"})
    assert done.status_code == status
    assert "# a comment" in done.text
    assert 'value="n0"' in done.text, "a second click makes one job"
    assert str(error) in html.unescape(done.text)


def test_a_fresh_page_asks_once_for_the_teams() -> None:
    browser, gateway = console({"GET /v1/teams": TeamList(teams=[])})
    assert "name: my-job" in browser.get("/console/submit").text
    assert [item[0] for item in gateway.asked].count("GET /v1/teams") == 1
