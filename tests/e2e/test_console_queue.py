"""The queue in a real browser: what it shows equals REST, and it follows what changes."""

from __future__ import annotations

from playwright.sync_api import expect

from gangline.sdk import connect
from gangline_console.formats import number
from gangline_schemas.job import JobSpec
from support.fixtures.platform import RunningPlatform
from support.harnesses.console_page import ConsolePage
from support.waiting import wait_until


def sleeping(name: str, gpus: int) -> JobSpec:
    return JobSpec.model_validate({
        "name": name, "team": "default", "run": "sleep 600", "stop_grace_seconds": 1,
        "resources": {"gpus": gpus, "memory_per_gpu_gb": 0.01, "cpus_per_gpu": 0.01},
    })  # fmt: skip


def test_the_queue_is_rest_s_and_follows_it(
    platform: RunningPlatform, console: ConsolePage
) -> None:
    page = console.page
    with connect(platform.client.url, platform.client.token) as gateway:
        total = sum(len(node.gpus) for node in gateway.nodes())
        holds = gateway.submit(sleeping("queue-holds", total))
        wait_until("it runs", lambda: gateway.get(holds.job_id).state == "running")
        console.go("/queue")
        expect(page.get_by_role("heading", name="No job waits")).to_be_visible()

        waits = gateway.submit(sleeping("queue-waits", 1))
        row = page.locator(f'tr[data-job="{waits.job_id}"]')
        expect(row).to_be_visible()
        entry = next(item for item in gateway.queue().queue if item.job_id == waits.job_id)
        assert entry.order is not None
        expect(row.locator("[data-label='+ Share']")).to_have_text(
            number(entry.order.share_penalty)
        )
        expect(row.locator("[data-label='Priority']")).to_have_text(str(entry.priority))
        expect(row).to_contain_text(entry.waiting.message if entry.waiting else "began to wait")
        expect(row.locator("[data-label='Starts'] > time")).to_be_visible()
        expect(page.locator(".starts .name")).to_contain_text("queue-waits · 1 GPU")

        gateway.cancel(holds.job_id)
        gateway.cancel(waits.job_id)
        expect(row).to_have_count(0)
        expect(page.get_by_role("heading", name="No job waits")).to_be_visible()
