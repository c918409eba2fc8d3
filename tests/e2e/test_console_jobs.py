"""The pages of jobs in a real browser: what they show equals what REST says."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from gangline.sdk import connect
from gangline_console.formats import number
from support.fixtures.platform import RunningPlatform
from support.harnesses.console_page import ConsolePage
from support.harnesses.log_watch import PACED, job_spec
from support.waiting import wait_until


def test_a_job_is_followed_and_cancelled_in_the_browser(
    platform: RunningPlatform, console: ConsolePage
) -> None:
    page = console.page
    with connect(platform.client.url, platform.client.token) as gateway:
        spec = job_spec("console-live", command=PACED, hyperparameters={"steps": 100_000})
        job_id = gateway.submit(spec).job_id
        wait_until("the first steps", lambda: (gateway.get(job_id).step or 0) > 2)

        console.go("/jobs?state=running&team=default")
        row = page.locator(f'tr[data-job="{job_id}"]')
        expect(row).to_contain_text("running")
        expect(row).to_contain_text(f"of {number(gateway.get(job_id).total_steps)}")

        row.get_by_role("link").first.click()
        expect(page).to_have_url(re.compile(f"/console/jobs/{job_id}"))
        before = gateway.get(job_id).step or 0
        expect(page.locator("#curve canvas")).to_be_visible()
        page.wait_for_function(
            "(before) => Number(document.querySelector('[data-cell=step]')"
            ".textContent.replaceAll(',', '')) > before",
            arg=before,
        )
        expect(page.locator("#live")).to_have_text("● live")

        page.go_back()
        expect(page).to_have_url(re.compile(r"state=running&team=default"))
        row.get_by_role("checkbox").check()
        page.get_by_role("button", name="Cancel 1 selected…").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Cancel 1 job?")
        expect(page.get_by_role("main")).to_contain_text("console-live")
        page.get_by_role("button", name="Cancel this job").click()
        expect(page).to_have_url(re.compile(r"/console/jobs\?state=running&team=default&cancelled"))
        wait_until("the end", lambda: gateway.get(job_id).state == "cancelled")


def test_filters_are_in_the_address_and_survive_a_reload(
    platform: RunningPlatform, console: ConsolePage
) -> None:
    page = console.page
    console.go("/jobs")

    page.get_by_label("State").select_option("failed")
    expect(page).to_have_url(re.compile("state=failed"))
    page.get_by_label("Text").fill("no-such-name")
    expect(page).to_have_url(re.compile("text=no-such-name"))
    expect(page.get_by_role("heading", name="No job matches")).to_be_visible()
    page.reload()
    expect(page.get_by_label("State")).to_have_value("failed")
    expect(page.get_by_label("Text")).to_have_value("no-such-name")


def test_keys_search_and_theme(platform: RunningPlatform, console: ConsolePage) -> None:
    page = console.page
    console.go("/jobs")

    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("t")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.keyboard.press("/")
    page.keyboard.type("console-nothing")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/console/search.q=console-nothing"))
