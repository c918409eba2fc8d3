"""The page of one job in a real browser: each tab shows the same as REST, live."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from gangline.sdk import Gangline, connect
from gangline_console.formats import size
from gangline_schemas.api.checkpoints import Checkpoint
from support.fixtures.platform import RunningPlatform
from support.harnesses.console_page import ConsolePage
from support.harnesses.log_watch import PACED, job_spec
from support.waiting import wait_until

EVIL = "<img src=x onerror=alert(1)>"
SCRIPT = f"""
import sys, time
from gangline_worker import report
for step in range(40):
    report({{"loss": 1 / (step + 1), "accuracy": step / 40}}, step)
    print(f"\\x1b[32mstep {{step}}\\x1b[0m {EVIL}", flush=True)
    time.sleep(0.05)
print("RuntimeError: {EVIL}", file=sys.stderr, flush=True)
sys.exit(3)
"""


def log_text(gateway: Gangline, job_id: str) -> str:
    return "".join(line.text for line in gateway.logs(job_id, tail=1000))


def committed(gateway: Gangline, job_id: str) -> list[Checkpoint]:
    return [row for row in gateway.checkpoints(job_id) if row.status == "committed"]


def test_a_job_that_failed_shows_its_log_curves_and_reason(
    platform: RunningPlatform, console: ConsolePage
) -> None:
    page = console.page
    spec = {
        "name": "console-fails", "team": "default", "command": ["python", "-c", SCRIPT],
        "resources": {"gpus": 1}, "restart": {"max": 0},
    }  # fmt: skip
    with connect(platform.client.url, platform.client.token) as gateway:
        job_id = gateway.submit(spec).job_id
        console.go(f"/jobs/{job_id}")
        expect(page.locator("[data-cell=state]")).to_have_text(re.compile("failed"))
        expect(page.locator("[data-cell=why]")).to_contain_text("RuntimeError")
        expect(page.locator("#timeline")).to_contain_text("running")
        wait_until("its log", lambda: "RuntimeError" in log_text(gateway, job_id))

        page.get_by_role("link", name="Log", exact=True).click()
        lines = page.locator("#lines .line")
        expect(lines).to_have_count(41)
        expect(lines.nth(5)).to_contain_text(f"step 5 {EVIL}")
        page.get_by_label("Errors only").check()
        page.get_by_role("button", name="Search").click()
        expect(page).to_have_url(re.compile("errors=1"))
        expect(lines.filter(has_text="RuntimeError")).to_have_count(1)
        page.reload()
        expect(page.get_by_label("Errors only")).to_be_checked()
        with page.expect_download() as download:
            page.get_by_role("link", name="Download").click()
        assert "RuntimeError" in download.value.path().read_text()

        wait_until("its curves", lambda: b"".join(gateway.points([job_id], names=["loss"])))
        page.get_by_role("link", name="Metrics").click()
        expect(page.locator("#plots canvas")).to_have_count(2)
        expect(page.locator("#plots figcaption").first).to_have_text("loss")
        page.get_by_role("link", name="Explain").click()
        expect(page.get_by_role("main")).to_contain_text(gateway.explain(job_id).message)


def test_checkpoints_are_pinned_and_a_restore_says_what_is_lost(
    platform: RunningPlatform, console: ConsolePage
) -> None:
    page = console.page
    with connect(platform.client.url, platform.client.token) as gateway:
        steps = {"steps": 100_000, "checkpoint_every_steps": 20}
        spec = job_spec("console-saves", command=PACED, hyperparameters=steps)
        job_id = gateway.submit(spec).job_id
        rows = wait_until("a checkpoint", lambda: committed(gateway, job_id))
        wait_until("a later step", lambda: (gateway.get(job_id).step or 0) > rows[0].step)

        console.go(f"/jobs/{job_id}?tab=checkpoints")
        row = page.locator("tbody tr").filter(has_text="committed").first
        expect(row).to_contain_text(size(rows[0].size_bytes))
        row.get_by_role("button", name="Pin").click()
        expect(page.get_by_role("status").filter(has_text="pinned")).to_be_visible()
        wait_until("the pin", lambda: any(item.pinned for item in committed(gateway, job_id)))
        page.locator("tbody tr").filter(has_text="pinned").get_by_role(
            "button", name="Restore…"
        ).click()
        expect(page.get_by_role("main")).to_contain_text("steps of training are lost")
        page.get_by_role("button", name="Restore").click()
        expect(page).to_have_url(re.compile("done=restored"))
        wait_until("its second attempt", lambda: gateway.get(job_id).attempt == 2)

        page.get_by_role("link", name="Configuration").click()
        page.get_by_text("Actions", exact=True).click()
        page.get_by_label("Priority, 0 is the highest").fill("3")
        page.get_by_role("button", name="Set").click()
        expect(page.locator(".sub")).to_contain_text("priority 3")
        page.get_by_role("link", name="Ranks").click()
        expect(page.locator("tbody tr")).to_have_count(2)
