"""The overview and the pages of nodes in a real browser."""

from __future__ import annotations

import json
from typing import Any

from playwright.sync_api import Route, expect

from gangline.sdk import connect
from support.fixtures.platform import RunningPlatform
from support.harnesses.console_page import ConsolePage
from support.harnesses.log_watch import PACED, job_spec
from support.waiting import wait_until

RACKS, NODES, GPUS = 79, 16, 8


def test_the_map_shows_what_rest_says_and_follows_it(
    platform: RunningPlatform, console: ConsolePage
) -> None:
    page = console.page
    with connect(platform.client.url, platform.client.token) as gateway:
        nodes = gateway.nodes()
        console.go("/overview")
        legend = page.locator("#legend")
        expect(legend).to_contain_text(f"idle {sum(len(node.gpus) for node in nodes)}")
        ready = page.locator('[data-cell="ready"]')
        expect(ready).to_have_text(str(len(nodes)))

        job = gateway.submit(job_spec("on-map", command=PACED, hyperparameters={"steps": 100_000}))
        job_id = job.job_id
        expect(legend.get_by_role("link", name=job_id)).to_be_visible()
        expect(page.locator('[data-cell="used"]')).to_have_text(str(job.gpus))
        page.get_by_role("link", name="Team", exact=True).click()
        expect(legend).to_contain_text(f"default {job.gpus}")
        page.reload()
        expect(legend).to_contain_text(f"default {job.gpus}")
        gateway.cancel(job_id)
        expect(page.locator('[data-cell="used"]')).to_have_text("0")
        wait_until("the end", lambda: gateway.get(job_id).state == "cancelled")


def test_ten_thousand_gpus_are_few_elements(
    platform: RunningPlatform, console: ConsolePage
) -> None:
    page = console.page

    def node(rack: int, place: int) -> dict[str, Any]:
        gang = {"job_id": f"job-{rack % 50}", "team": "nlp", "gpus": [0, 1, 2, 3], "first_rank": 0}
        return {
            "node_id": f"n-{rack}-{place}", "status": "failed" if place == 3 else "ready",
            "why": "", "straggler": "", "block": "b", "rack": f"r-{rack}", "model": "h100",
            "gpus": [*range(GPUS)], "gangs": [gang] if place % 2 else [], "utilization": None,
        }  # fmt: skip

    found = {
        "at": "2026-11-26T03:00:00Z", "gpus": RACKS * NODES * GPUS, "gpus_ready": 0, "gpus_used": 0,
        "largest_gangs": [],
        "nodes": [node(rack, place) for rack in range(RACKS) for place in range(NODES)],
    }  # fmt: skip

    def answer(route: Route) -> None:
        route.fulfill(body=json.dumps(found), content_type="application/json")

    page.route("**/v1/gpus", answer)
    console.go("/overview")

    expect(page.locator(".rack")).to_have_count(RACKS)
    expect(page.locator("#legend")).to_contain_text("79 nodes take no gangs")
    assert page.locator("#map *").count() < 1000


def test_a_node_is_drained_and_admitted(platform: RunningPlatform, console: ConsolePage) -> None:
    page = console.page
    with connect(platform.client.url, platform.client.token) as gateway:
        name = gateway.nodes()[0].node_id

        def status() -> str:
            return gateway.node(name).status

        console.go("/nodes?text=" + name)
        page.get_by_role("link", name=name).click()
        page.get_by_role("button", name="Drain…").click()
        expect(page.get_by_role("main")).to_contain_text("It takes no new gangs.")
        page.get_by_role("button", name="Drain it").click()
        expect(page.locator(".badge").first).to_contain_text("draining")
        assert status() == "draining"
        page.get_by_role("button", name="Admit").click()
        expect(page.locator(".badge").first).to_contain_text("ready")
        assert status() == "ready"
