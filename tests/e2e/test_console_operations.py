"""Incidents, alerts, health, teams and search in a real browser: they show what REST says."""

from __future__ import annotations

import re
from typing import Any

import httpx
from playwright.sync_api import expect

from gangline.sdk import connect
from gangline_console.formats import number
from support.fixtures.platform import RunningPlatform
from support.harnesses.console_page import ConsolePage
from support.harnesses.log_watch import job_spec
from support.waiting import wait_until


def rest(platform: RunningPlatform, path: str) -> Any:
    headers = {"Authorization": f"Bearer {platform.client.token}"}
    answer = httpx.get(f"{platform.client.url}{path}", headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_failure_is_found_with_its_cost_and_runbook(
    platform: RunningPlatform, console: ConsolePage
) -> None:
    page = console.page
    with connect(platform.client.url, platform.client.token) as gateway:
        spec = job_spec("console-fails", command=["python", "-c", "raise SystemExit(3)"])
        job_id = gateway.submit(spec).job_id
        wait_until("the failure", lambda: gateway.get(job_id).state == "failed")

    def incidents() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = rest(platform, f"/v1/incidents?job={job_id}")["incidents"]
        return [one for one in found if one["outcome"] != "open"]

    wait_until("the incident", incidents)
    (one, *_) = incidents()
    console.go(f"/incidents?days=all&job={job_id}")
    row = page.locator(f'tr[data-incident="{job_id}/{one["attempt"]}"]')
    expect(row).to_contain_text(one["failure_class"].replace("_", " "))
    row.get_by_role("link").first.click()
    expect(page.get_by_role("main")).to_contain_text(one["message"])
    page.get_by_role("link", name=re.compile("Runbook")).click()
    expect(page).to_have_url(re.compile(rf"/docs/runbooks/{one['failure_class']}\.md"))
    expect(page.get_by_role("heading", level=1)).to_contain_text(one["failure_class"])


def test_health_shows_each_process_and_a_silence_begins_and_ends(
    platform: RunningPlatform, console: ConsolePage
) -> None:
    page = console.page
    wait_until("all services report", lambda: rest(platform, "/v1/health")["ok"])
    services = rest(platform, "/v1/health")["services"]
    console.go("/health")
    for row in services:
        place = page.locator(f'tr[data-service="{row["service"]}"]', has_text=row["instance"])
        expect(place.first).to_contain_text("ready")

    console.go("/alerts/silence")
    page.get_by_label("Rule").select_option("low-mfu")
    page.get_by_label("Comment").fill("console <b>test</b>")
    page.get_by_role("button", name="Silence").click()
    expect(page.get_by_role("status").filter(has_text="holds")).to_be_visible()
    (silence,) = [
        one for one in rest(platform, "/v1/silences")["silences"] if "console" in one["comment"]
    ]
    row = page.locator(f'tr[data-silence="{silence["number"]}"]')
    expect(row).to_contain_text("console <b>test</b>")
    row.get_by_role("button", name="End").click()
    expect(page.get_by_role("status").filter(has_text="has ended")).to_be_visible()
    assert silence["number"] not in {
        one["number"] for one in rest(platform, "/v1/silences")["silences"]
    }
    console.go("/alerts/rules")
    for rule in rest(platform, "/v1/alert-rules")["rules"]:
        expect(page.locator(f'tr[data-rule="{rule["rule"]}"]').first).to_contain_text(
            rule["severity"]
        )
    console.go("/alerts/deliveries")
    for sent in rest(platform, "/v1/notifications")["notifications"][:10]:
        row = page.locator(f'tr[data-notification="{sent["notification"]}"]').first
        expect(row).to_contain_text(sent["target"])


def test_teams_and_the_search_by_keys(platform: RunningPlatform, console: ConsolePage) -> None:
    page = console.page
    console.go("/teams")
    for team in rest(platform, "/v1/teams")["teams"]:
        expect(page.locator(f'tr[data-team="{team["team"]}"]')).to_contain_text(
            f"of {team['gpu_limit']} GPUs"
        )
    week = rest(platform, "/v1/reports/weekly")["this"]
    console.go("/teams/weekly")
    for name, field in (("Jobs submitted", "jobs_submitted"), ("Gangs that failed", "failures")):
        row = page.locator("#figures tr", has_text=name)
        expect(row.locator("td").nth(1)).to_contain_text(number(week[field]))
    console.go("/teams")
    page.keyboard.press("/")
    page.keyboard.type("silences")
    option = page.get_by_role("option", name=re.compile("^Silences"))
    expect(option).to_be_visible()
    while option.get_attribute("aria-selected") != "true":
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"/docs/guides/alerts\.md#silences"))
    page.go_back()
    expect(page).to_have_url(re.compile("/console/teams"))
