"""The time machine in a real browser: a past time shows what REST says of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
from playwright.sync_api import expect

from gangline.sdk import connect
from gangline_schemas.job import JobSpec
from support.fixtures.platform import RunningPlatform
from support.harnesses.console_page import ConsolePage
from support.waiting import wait_until

SPEC = JobSpec.model_validate({
    "name": "time-holds", "team": "default", "run": "sleep 600", "stop_grace_seconds": 1,
    "resources": {"gpus": 2, "memory_per_gpu_gb": 0.01, "cpus_per_gpu": 0.01},
})  # fmt: skip


def next_second() -> str:
    """A time in whole seconds that has just passed, and is after all that is known so far."""
    found = (datetime.now(UTC) + timedelta(seconds=1)).replace(microsecond=0)
    wait_until("a later second", lambda: datetime.now(UTC) > found)
    return found.isoformat().replace("+00:00", "Z")


def platform_at(platform: RunningPlatform, at: str) -> dict[str, Any]:
    answer = httpx.get(
        f"{platform.client.url}/v1/history/at",
        params={"time": at, "nodes": True},
        headers={"Authorization": f"Bearer {platform.client.token}"},
        timeout=60,
    )
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_a_past_time_is_rest_s_and_its_address_keeps_it(
    platform: RunningPlatform, console: ConsolePage
) -> None:
    page = console.page
    with connect(platform.client.url, platform.client.token) as gateway:
        job_id = gateway.submit(SPEC).job_id
        wait_until("it runs", lambda: gateway.get(job_id).state == "running")
        at = next_second()
        gateway.cancel(job_id)
        wait_until("its end", lambda: gateway.get(job_id).state == "cancelled")
    then = platform_at(platform, at)
    (job,) = [one for one in then["jobs"] if one["job_id"] == job_id]

    console.go(f"/time?at={at}")
    row = page.locator(f'tr[data-job="{job_id}"]')
    expect(row).to_contain_text(job["state"])
    expect(row).to_contain_text(f"{job['gpus_allocated']} of {job['gpus']}")
    expect(page.locator("#legend")).to_contain_text(f"{job_id} {job['gpus_allocated']}")
    page.locator("#map-table summary").click()
    for node in then["gpus"]["nodes"]:
        shown = page.locator("#map-table tr", has_text=node["node_id"])
        expect(shown).to_contain_text(node["status"])
        gangs = [gang["job_id"] for gang in node["gangs"]]
        expect(shown.locator("td").last).to_have_text(", ".join(gangs))
    page.get_by_label("Compare with").fill(next_second().removesuffix("Z"))
    page.get_by_role("button", name="Show", exact=True).click()
    changed = page.locator("tr", has=page.get_by_role("link", name=job_id)).first
    expect(changed).to_contain_text("not there")
    page.reload()
    expect(changed).to_contain_text("not there")
    page.go_back()
    expect(row).to_contain_text(job["state"])
