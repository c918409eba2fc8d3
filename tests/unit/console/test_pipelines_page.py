"""Pipelines: the list, one pipeline, and a run with its graph, its times and why a step ran."""

from __future__ import annotations

from typing import Any
from zoneinfo import ZoneInfoNotFoundError

import pytest

from gangline_console.pages.pipelines.graph import MOST_BOXES, picture
from gangline_console.pages.pipelines.timeline import timeline
from gangline_gateway import pipelines_state
from gangline_pipelines.core import triggers
from gangline_schemas.api.pipelines import PipelineList, RunList
from support.builders.console import console, csrf
from support.builders.pipelines import TEAM, PipelineRun, pipeline
from support.builders.registry import ALIAS, MODEL, gate_set, moved


def world() -> tuple[PipelineRun, str]:
    """A run with a step of each kind: cached, skipped, failed, blocked and running."""
    made = PipelineRun()
    steps: dict[str, dict[str, Any]] = {
        "prepare": {"out": ["tokens"]},
        "train": {
            "in": {"data": "prepare.tokens"}, "out": {"acc": "score"}, "each": [1, "<b>2</b>"],
        },
        "export": {"when": "train.acc > 2", "out": ["package"]},
        "odd": {"out": ["x"], "cache": False},
        "last": {"in": {"x": "odd.x"}},
        "slow": {"out": ["y"], "cache": False},
        "champion": {"resume": f"{MODEL}@{ALIAS}", "out": ["z"]},
    }  # fmt: skip
    triggers = {"new": {"snapshot": "web-*"}, "nightly": {"schedule": "0 3 * * *"}}
    made.feed(gate_set())
    made.feed(moved(3))
    made.apply(pipeline(steps, siblings="finish", triggers=triggers, description="<i>all</i>"))
    made.begin()
    made.finish()
    run = made.begin()
    made.check()
    odd = next(job_id for job_id, one in made.jobs.items() if one.step == "odd")
    made.fail(odd)
    made.check()
    return made, run


def answers(made: PipelineRun, run: str) -> dict[str, Any]:
    """REST's answers, from the gateway's own code."""
    state = made.state
    listed = PipelineList(
        pipelines=pipelines_state.pipelines(state, lambda team: team == TEAM, made.now)
    )
    found = pipelines_state.pipeline(state, state.pipelines[f"{TEAM}/p"], made.now)
    runs = RunList(runs=[*pipelines_state.runs(state, lambda _: True)])
    details = pipelines_state.run_details(state, state.runs[run])
    known = {
        "GET /v1/pipelines": listed,
        "GET /v1/pipeline-runs": runs,
        "GET /v1/pipelines/p": found,
        "GET /v1/pipelines/p/runs": runs,
        f"GET /v1/pipeline-runs/{run}": details,
        "POST /v1/pipelines/p/runs?team=nlp": runs.runs[0],
        "POST /v1/pipelines/p/pause?team=nlp": found,
        f"POST /v1/pipeline-runs/{run}/cancel": details,
    }
    for name in made.states(run):
        why = pipelines_state.step_why(state, state.runs[run], name)
        known[f"GET /v1/pipeline-runs/{run}/steps/{name}"] = why
    return known


def test_the_list_shows_triggers_and_the_last_run() -> None:
    client, _ = console(answers(*world()))
    text = client.get("/console/pipelines").text
    for shown in (
        "snapshot <code>web-*</code>",
        "0 3 * * * UTC",
        "next ",
        "&lt;i&gt;all",
        "running",
    ):
        assert shown in text, shown


def test_without_pipelines_the_page_says_how_to_begin() -> None:
    empty = {
        "GET /v1/pipelines": PipelineList(pipelines=[]),
        "GET /v1/pipeline-runs": RunList(runs=[]),
    }
    client, _ = console(empty)
    assert "gangline pipeline apply pipeline.yaml" in client.get("/console/pipelines").text


def test_a_pipeline_shows_its_steps_and_runs() -> None:
    made, run = world()
    client, _ = console(answers(made, run))
    text = client.get("/console/pipelines/p?team=nlp").text
    for shown in ("data ← prepare.tokens", "train.acc &gt; 2", run, "Pause triggers"):
        assert shown in text, shown


def test_a_run_shows_each_state_in_the_graph_and_the_table() -> None:
    made, run = world()
    client, _ = console(answers(made, run))
    text = client.get(f"/console/pipelines/runs/{run}").text
    assert set(made.states(run).values()) == {"cached", "skipped", "failed", "blocked", "running"}
    for state in set(made.states(run).values()):
        assert text.count(state) >= 2, state
    assert 'hx-trigger="every 2s"' in text
    assert "the work since their last checkpoints is lost" in text
    assert "it exited with code 1 (user error)" in text
    assert text.count('class="edge"') == 2 + 2 + 1


def test_a_step_shows_why_it_ran() -> None:
    made, run = world()
    client, _ = console(answers(made, run))
    text = client.get(f"/console/pipelines/runs/{run}?step=train-0").text
    for shown in ("equal to ", "Key: in.data", made.step(run, "train-0").outputs["acc"].digest):
        assert shown in text, shown
    shown = client.get(f"/console/pipelines/runs/{run}?step=champion").text
    assert f"{MODEL}@{ALIAS}, version 3: step 100 of " in shown
    assert "Key: " not in client.get(f"/console/pipelines/runs/{run}?step=nothing").text


def test_forms_ask_rest() -> None:
    made, run = world()
    client, gateway = console(answers(made, run))
    form = {"csrf": csrf(), "run": run, "action": "cancel"}
    assert client.post("/console/pipelines/change", data=form).status_code in {200, 303}
    assert 'name="key" value="' in client.get("/console/pipelines/p?team=nlp").text
    form = {"csrf": csrf(), "pipeline": "p", "team": TEAM}
    client.post("/console/pipelines/run", data={**form, "key": "k1"})
    client.post("/console/pipelines/pause", data={**form, "paused": "true"})
    asked = [path for path, _, _ in gateway.asked if path.startswith("POST")]
    assert asked == [
        f"POST /v1/pipeline-runs/{run}/cancel",
        "POST /v1/pipelines/p/runs?team=nlp",
        "POST /v1/pipelines/p/pause?team=nlp",
    ]
    assert gateway.keys == ["k1"]
    wrong = {"csrf": csrf(), "run": run, "action": "delete"}
    assert client.post("/console/pipelines/change", data=wrong).status_code == 422


def test_a_queued_run_can_be_cancelled_and_leads_back_to_its_pipeline() -> None:
    made, run = world()
    known = answers(made, run)
    shown = known[f"GET /v1/pipeline-runs/{run}"]
    queued = shown.model_copy(update={"state": "queued", "started_at": None, "step_rows": []})
    client, _ = console({**known, "GET /v1/pipeline-runs/q": queued,
                         "POST /v1/pipeline-runs/q/cancel": queued.model_copy(
                             update={"state": "cancelled"})})  # fmt: skip
    assert 'value="cancel"' in client.get("/console/pipelines/runs/q").text
    form = {"csrf": csrf(), "run": "q", "action": "cancel"}
    gone = client.post("/console/pipelines/change", data=form, follow_redirects=False)
    assert gone.headers["location"] == f"/console/pipelines/p?team={TEAM}"


def test_boxes_stand_right_of_what_they_need_and_never_on_one_another() -> None:
    made, run = world()
    rows = pipelines_state.run_details(made.state, made.state.runs[run]).step_rows
    drawn = picture(rows)
    assert drawn is not None
    places = {box.step.name: (box.x, box.y) for box in drawn.boxes}
    assert len(set(places.values())) == len(places) == len(rows)
    for row in rows:
        assert all(places[need][0] < places[row.name][0] for need in row.needs)
    assert all(x < drawn.width and y < drawn.height for x, y in places.values())
    assert picture(rows[:1] * (MOST_BOXES + 1)) is None


def test_the_axis_of_times_has_the_steps_that_ran() -> None:
    made, run = world()
    made.now = made.now.replace(second=30)
    rows = pipelines_state.run_details(made.state, made.state.runs[run]).step_rows
    drawn = timeline(rows, made.now)
    assert drawn is not None
    assert {bar.step.name for bar in drawn.bars} == {"odd", "slow"}
    assert all(0 <= bar.left <= bar.left + bar.width <= 100.01 for bar in drawn.bars)
    assert timeline([row for row in rows if row.hit], made.now) is None


def test_a_run_without_steps_has_no_picture() -> None:
    assert picture([]) is None


def test_a_schedule_in_a_zone_that_this_machine_does_not_know_shows_no_next_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, run = world()
    (shown,) = answers(made, run)["GET /v1/pipelines"].pipelines
    assert [one.next_at is not None for one in shown.triggers if one.kind == "schedule"] == [True]

    def unknown(name: str) -> None:
        raise ZoneInfoNotFoundError(name)

    monkeypatch.setattr(triggers, "ZoneInfo", unknown)
    (shown,) = answers(made, run)["GET /v1/pipelines"].pipelines
    assert [one.next_at for one in shown.triggers if one.kind == "schedule"] == [None]
