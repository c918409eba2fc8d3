"""A day in the browser: sign-in, jobs cancelled together, a model moved, a pipeline, a study."""

from __future__ import annotations

import re
from typing import Any

import pytest
from mlflow import MlflowClient
from playwright.sync_api import Browser, expect

from gangline.sdk import Gangline, connect
from gangline_schemas.gate_file import Gate
from support.fixtures.platform import RunningPlatform
from support.harnesses.console_page import ConsolePage, one_time_code
from support.harnesses.console_tour import FAILING, STUDY
from support.harnesses.log_watch import job_spec
from support.waiting import wait_until

TEAM, MODEL, ALIAS = "research", "walk-tagger", "champion"
PIPELINE: dict[str, Any] = {
    "name": "walk", "team": "default",
    "steps": {"prepare": {"job": {"run": "true", "resources": {"gpus": 1}}}},
}  # fmt: skip
GATE: dict[str, Any] = {
    "team": TEAM, "model": MODEL, "aliases": [ALIAS], "baseline": "current",
    "first": "accept", "checkpoint": "any", "suites": {"qa": {"rule": "better"}},
}  # fmt: skip


def test_a_stranger_signs_in_by_a_token_and_a_code_counts_once(
    platform: RunningPlatform, chromium: Browser
) -> None:
    url, token = platform.client.url, platform.client.token
    with chromium.new_context() as context:
        page = context.new_page()
        page.goto(f"{url}/console/queue")
        expect(page).to_have_url(re.compile("/session.next="))
        page.get_by_label("Token").fill("not-a-token")
        page.get_by_role("button", name="Sign in").click()
        expect(page.locator("body")).to_contain_text("Unknown token.")
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Sign in").click()
        expect(page).to_have_url(f"{url}/console/queue")
        (cookie,) = context.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
        assert token not in page.content()
        page.locator("summary", has_text="local-admin").click()
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_label("Token")).to_be_visible()

        code = one_time_code(url, token)
        page.goto(f"{url}/session?next=/console/jobs#{code}")
        expect(page).to_have_url(f"{url}/console/jobs")
        context.clear_cookies()
        page.goto(f"{url}/session?next=/console/jobs#{code}")
        expect(page.locator("body")).to_contain_text("This code was used")
        expect(page.get_by_label("Token")).to_be_visible()


def test_a_failed_job_leads_to_the_lines_of_its_first_rank(
    platform: RunningPlatform, console: ConsolePage
) -> None:
    page = console.page
    with connect(platform.client.url, platform.client.token) as gateway:
        job_id = gateway.submit(job_spec("walk-fails", command=FAILING)).job_id
        wait_until("its end", lambda: gateway.get(job_id).ended)
        wait_until("its incident", lambda: gateway.incidents(job_id).incidents)
    console.go(f"/incidents/{job_id}/1")
    page.get_by_role("link", name=re.compile("^attempt 1, rank")).click()
    expect(page).to_have_url(re.compile(rf"/jobs/{job_id}\?.*tab=logs"))
    lines = page.locator("#lines .line")
    expect(lines.filter(has_text="disk is full")).to_have_count(1)


@pytest.mark.nightly
def test_jobs_are_cancelled_together_after_a_page_that_names_them(
    platform: RunningPlatform, console: ConsolePage
) -> None:
    page = console.page
    with connect(platform.client.url, platform.client.token) as gateway:
        every = sum(len(node.gpus) for node in gateway.nodes())
        specs = [
            job_spec(
                f"walk-together-{number}", command=["sleep", "600"], stop_grace_seconds=1,
                resources={"gpus": every},
            )
            for number in range(2)
        ]  # fmt: skip
        jobs = [gateway.submit(spec).job_id for spec in specs]
        console.go("/jobs?name=walk-together")
        for job_id in jobs:
            page.locator(f'tr[data-job="{job_id}"]').get_by_role("checkbox").check()
        page.get_by_role("button", name="Cancel 2 selected…").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Cancel 2 jobs?")
        for job_id in jobs:
            expect(page.get_by_role("main")).to_contain_text(job_id)
        page.get_by_role("button", name="Cancel these jobs").click()
        wait_until("both ends", lambda: all(gateway.get(one).state == "cancelled" for one in jobs))


def versions(gateway: Gangline, url: str) -> None:
    """Version 1 is the champion; version 2 is better."""
    uri = f"{url}/mlflow/teams/{TEAM}"
    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    client.create_registered_model(MODEL)
    run = client.create_run(client.create_experiment(MODEL)).info.run_id
    gateway.set_gate(Gate.model_validate(GATE))
    for number, right in ((1, 50), (2, 90)):
        client.create_model_version(MODEL, f"runs:/{run}/m{number}", run_id=run)
        gateway.register(MODEL, version=number, team=TEAM)
        scores = {f"q{item}": float(item < right) for item in range(100)}
        gateway.report_scores(MODEL, number, "qa", scores, team=TEAM)
    assert gateway.promote_version(MODEL, 1, alias=ALIAS, team=TEAM).moved


@pytest.mark.nightly
def test_a_model_is_promoted_by_its_gate_and_rolled_back(
    platform: RunningPlatform, console: ConsolePage, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = console.page
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", platform.client.token)
    with connect(platform.client.url, platform.client.token) as gateway:
        versions(gateway, platform.client.url)
        console.go("/models")
        page.get_by_role("link", name=MODEL).click()
        alias = page.locator(f'tr[data-alias="{ALIAS}"]')
        expect(alias.locator("td").nth(1)).to_have_text("1")
        page.locator('tr[data-version="2"]').get_by_role("link", name=f"To {ALIAS}…").click()
        expect(page.get_by_role("main")).to_contain_text("The gate now")
        page.get_by_role("button", name="Promote").click()
        expect(alias.locator("td").nth(1)).to_have_text("2")
        alias.get_by_role("link", name="Roll back to 1…").click()
        page.get_by_label("Reason").fill("slower <b>than</b> before")
        page.get_by_role("button", name="Roll back").click()
        expect(alias.locator("td").nth(1)).to_have_text("1")
        expect(page.locator("#history")).to_contain_text("slower <b>than</b> before")
        gateway.remove_gate(MODEL, team=TEAM)


@pytest.mark.nightly
def test_a_pipeline_is_run_and_says_why_its_step_ran_and_what_it_used(
    platform: RunningPlatform, console: ConsolePage
) -> None:
    page = console.page
    with connect(platform.client.url, platform.client.token) as gateway:
        gateway.apply_pipeline(PIPELINE)
        console.go("/pipelines")
        page.get_by_role("link", name="walk", exact=True).click()
        page.get_by_role("button", name="Run", exact=True).click()
        expect(page).to_have_url(re.compile("/pipelines/runs/walk-"))
        run_id = re.findall(r"/runs/([\w-]+)", page.url)[0]
        wait_until("its end", lambda: gateway.pipeline_run(run_id).state == "succeeded")
        assert gateway.pipeline_run(run_id).gpu_seconds > 0
    page.locator('a[data-step="prepare"]').click()
    expect(page.get_by_role("main")).to_contain_text("it has no outputs to keep")
    expect(page.get_by_role("main")).not_to_contain_text("0 GPU-s1 job")


@pytest.mark.nightly
def test_a_study_leads_to_its_trial_and_back(
    platform: RunningPlatform, console: ConsolePage
) -> None:
    page = console.page
    with connect(platform.client.url, platform.client.token) as gateway:
        limits = {"trials": 1, "parallel": 1}
        study = gateway.submit_study({**STUDY, "name": "walk-sweep", "limits": limits}).study_id
        wait_until("its end", lambda: gateway.study(study).state == "ended")
        best = gateway.study(study).best
        assert best is not None
    console.go("/studies?name=walk-sweep")
    page.get_by_role("link", name="walk-sweep", exact=True).click()
    expect(page.locator("#figures")).to_contain_text("1 of 1")
    page.get_by_role("link", name="Trials", exact=True).click()
    page.locator('tr[data-trial="0"]').get_by_role("link").first.click()
    expect(page).to_have_url(re.compile(f"/jobs/{study}-t0"))
    page.get_by_role("link", name=re.compile(study)).first.click()
    expect(page).to_have_url(re.compile(f"/studies/{study}"))
