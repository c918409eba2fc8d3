"""The console while parts are away, tokens end, and for members of other teams."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from gangline.sdk import connect
from gangline_service.tokens import Role, TokenEntry, TokenFile, new_token, write_tokens
from support.fixtures.platform import RunningPlatform
from support.harnesses.console_page import ConsolePage, console_page
from support.harnesses.log_watch import PACED, job_spec

HOSTILE = "<img src=x onerror=alert(1)>\x1b[31m"
METRIC = "<script>alert(1)</script>"


@pytest.fixture
def member(platform: RunningPlatform) -> Iterator[str]:
    """The token of a member of the team `small`; it is revoked afterwards."""
    token = new_token()
    path = platform.data_dir / "tokens.json"
    before = TokenFile.model_validate_json(path.read_bytes()).tokens
    entry = TokenEntry.of(token, name="mia", role=Role.MEMBER, teams=["small"])
    write_tokens(path, [*before, entry])
    yield token
    write_tokens(path, before)


def test_a_killed_console_comes_back_by_itself(
    platform: RunningPlatform, console: ConsolePage
) -> None:
    page = console.page
    console.go("/jobs")
    os.kill(platform.pid("console-0"), signal.SIGKILL)
    console.go("/jobs")  # at first perhaps the gateway's page, which tries again

    expect(page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()
    console.problems = [one for one in console.problems if "503" not in one]


def test_a_killed_gateway_shows_how_old_the_page_is_and_the_session_stays(
    platform: RunningPlatform, console: ConsolePage
) -> None:
    page = console.page
    console.go("/jobs")
    expect(page.locator("#live")).to_have_text("● live")

    os.kill(platform.pid("gateway-0"), signal.SIGKILL)

    expect(page.locator("#live")).to_contain_text("as of")
    expect(page.locator("#live")).to_have_text("● live")  # its sessions are in a file
    console.problems.clear()  # connections that were refused


def test_a_page_without_a_network_says_how_old_it_is(console: ConsolePage) -> None:
    page = console.page
    live = page.locator("#live")
    page.clock.install()
    for path, usual in (("/jobs", "● live"), ("/alerts", "● live"), ("/runs", ""), ("/docs", "")):
        console.go(path)
        if usual:
            expect(live).to_have_text(usual)
        page.context.set_offline(True)
        expect(live).to_contain_text("◌ as of")
        page.context.set_offline(False)
        expect(live).to_have_text(usual) if usual else expect(live).to_be_hidden()
    console.go("/runs")
    page.clock.fast_forward("05:00")
    expect(live).to_have_text("as of 5 min ago")
    console.problems = [one for one in console.problems if "ERR_INTERNET" not in one]


def test_a_revoked_token_ends_the_session(
    platform: RunningPlatform, chromium: Browser, member: str
) -> None:
    with console_page(chromium, platform.client.url, member) as console:
        page = console.page
        path = platform.data_dir / "tokens.json"
        entries = TokenFile.model_validate_json(path.read_bytes()).tokens
        write_tokens(path, [one for one in entries if one.name != "mia"])

        console.go("/runs")

        expect(page).to_have_url(re.compile(r"/session\?next=%2Fconsole%2Fruns"))
        expect(page.get_by_label("Token")).to_be_visible()
        console.problems = [one for one in console.problems if "401" not in one]


def test_a_member_sees_nothing_of_another_teams_job(
    platform: RunningPlatform, chromium: Browser, member: str
) -> None:
    with connect(platform.client.url, platform.client.token) as gateway:
        slow = {"PAUSE_S": "0.3"}
        steps = {"steps": 100_000}
        spec = job_spec("secret-plan", command=PACED, env=slow, hyperparameters=steps)
        job_id = gateway.submit(spec).job_id
        with console_page(chromium, platform.client.url, member) as console:
            page = console.page
            for path in ("/overview", "/jobs", "/queue", "/runs", "/nodes", "/time", "/teams"):
                console.go(path)
                expect(page.get_by_role("heading", level=1).first).to_be_visible()
                assert "secret-plan" not in page.content(), path
            for path in (f"/jobs/{job_id}", f"/submit?from={job_id}", f"/compare?runs={job_id}"):
                console.go(path)
                assert "secret-plan-" not in page.locator("main").inner_text().replace(job_id, "")
            answer = page.goto(f"{console.url}/console/jobs/{job_id}")
            assert answer is not None
            assert answer.status == 404
            expect(page.get_by_role("main")).to_contain_text("belongs to another team")
            console.problems = [one for one in console.problems if "404" not in one]


def test_texts_of_users_stay_texts(platform: RunningPlatform, console: ConsolePage) -> None:
    page = console.page
    script = (
        "import sys, gangline_worker as w; "
        f"w.report({{{METRIC!r}: 1.0}}, 1); w.flush(); print({HOSTILE!r}, flush=True); "
        f"sys.exit({HOSTILE!r})"
    )
    with connect(platform.client.url, platform.client.token) as gateway:
        spec = job_spec(
            "hostile", command=["python", "-c", script], hyperparameters={"<b>lr</b>": HOSTILE}
        )
        job_id = gateway.submit(spec).job_id
        assert gateway.wait(job_id, 120).state == "failed"
        for path in ("?tab=logs", "?tab=config", "?tab=events", ""):
            console.go(f"/jobs/{job_id}{path}")
            expect(page.get_by_role("heading", level=1).first).to_have_text("hostile")
            expect(page.get_by_role("main")).to_contain_text("<img src=x")
            assert page.locator("main img, main b:text-is('lr')").count() == 0, path
        for path in (f"/jobs/{job_id}?tab=metrics", f"/compare?runs={job_id}", "/runs"):
            console.go(path)
            expect(page.get_by_role("main")).to_contain_text(METRIC)
            assert page.locator("main script, main img").count() == 0, path
