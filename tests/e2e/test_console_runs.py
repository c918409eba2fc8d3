"""The pages of runs in a real browser: what they show equals REST; the address is the view."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from gangline.sdk import Gangline, connect
from gangline_console.formats import number
from gangline_schemas.api.runs import Comparison
from support.fixtures.platform import RunningPlatform
from support.harnesses.console_page import ConsolePage
from support.waiting import wait_until

JOB = Path(__file__).parents[2] / "examples" / "metrics-script" / "job.yaml"
NAME = "console-runs"
STEPS = 40
SMOOTHING = 0.5


@pytest.fixture(scope="module")
def compared(platform: RunningPlatform) -> Comparison:
    """Two runs of other learning rates, as REST compares them once they are in history."""
    with connect(platform.client.url, platform.client.token) as gateway:
        ids = [
            gateway.submit(
                JOB,
                overrides={"name": NAME, "hyperparameters.lr": lr, "hyperparameters.steps": STEPS},
            ).job_id
            for lr in (0.05, 0.1)
        ]
        for run_id in ids:
            assert gateway.wait(run_id).state == "succeeded"
        wait_until("the losses in history", lambda: _whole(gateway, ids))
        return gateway.compare(ids, ["loss"], smoothing=SMOOTHING)


def _whole(gateway: Gangline, ids: list[str]) -> bool:
    runs = [*gateway.runs(where=f"name = '{NAME}' and state = 'succeeded'")]
    return len(runs) == 2 and all(
        sum(len(curve.points) for curve in gateway.curves(run_id, ["loss"])) == STEPS
        for run_id in ids
    )


def test_runs_are_found_ordered_exported_and_chosen(
    console: ConsolePage, compared: Comparison
) -> None:
    page = console.page
    console.go("/runs")
    page.get_by_role("textbox", name="Filter").fill(f"name = '{NAME}' and metrics.loss < ")
    page.get_by_role("button", name="Filter").click()
    expect(page.get_by_role("alert")).to_contain_text("expected a number")
    page.get_by_role("textbox", name="Filter").fill(f"name = '{NAME}'")
    page.get_by_role("button", name="Filter").click()
    page.get_by_role("columnheader", name="loss").get_by_role("link").click()
    expect(page).to_have_url(re.compile("order="))

    losses = compared.metrics["loss"]
    for run in compared.runs:
        row = page.locator(f'tr[data-run="{run.run_id}"]')
        expect(row.locator('[data-key="metrics.loss"]')).to_contain_text(
            number(losses[run.run_id].value)
        )
        expect(row.locator('[data-key="params.lr"]')).to_have_text(run.hyperparameters["lr"])
    best = min(losses, key=lambda run_id: losses[run_id].value)
    rows = page.locator("#runs tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.first).to_have_attribute("data-run", best)
    expect(rows.first).to_contain_text("★")
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    text = download.value.path().read_text(encoding="utf-8")
    found = {row["run_id"]: float(row["metrics.loss"]) for row in csv.DictReader(text.splitlines())}
    assert found == {run_id: final.value for run_id, final in losses.items()}

    rows.first.get_by_role("checkbox").check()
    page.reload()
    expect(rows.first.get_by_role("checkbox")).to_be_checked()
    rows.last.get_by_role("checkbox").check()
    page.get_by_role("button", name="Compare 2 selected").click()
    expect(page).to_have_url(re.compile(f"/console/compare.runs={best},"))
    page.go_back()
    expect(page.get_by_role("button", name="Compare 2 selected")).to_be_enabled()


def test_curves_are_zoomed_and_the_view_survives_reload_and_back(
    console: ConsolePage, compared: Comparison
) -> None:
    page = console.page
    ids = ",".join(run.run_id for run in compared.runs)
    console.go(f"/compare?runs={ids}&metric=loss&smooth={SMOOTHING}")

    drawn = {
        (curve.run_id, point.step): pytest.approx((point.value, point.smoothed), rel=1e-3)
        for curve in compared.curves
        for point in curve.points
    }
    assert points(page) == drawn
    plot = page.locator("figure.overlay .u-over")
    box = plot.bounding_box()
    assert box is not None
    with page.expect_response(re.compile("/v1/runs/overlay.*first=")):
        page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 60)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 60, steps=4)
        page.mouse.up()
    expect(page).to_have_url(re.compile("first=.*last="))
    first, last = (int(end) for end in re.findall(r"(?:first|last)=(\d+)", page.url))
    assert 0 < first < last < STEPS
    assert {*points(page)} == {place for place in drawn if first <= place[1] <= last}
    page.get_by_label("X axis").select_option("time")
    page.get_by_label("Log scale").check()
    hidden = compared.runs[0].run_id
    page.locator(f'#lines tr[data-run="{hidden}"]').get_by_role("checkbox").uncheck()
    zoomed = page.url
    page.reload()
    expect(page.get_by_label("X axis")).to_have_value("time")
    expect(page.get_by_label("Log scale")).to_be_checked()
    assert page.url == zoomed
    assert f"hide={hidden}" in zoomed
    page.go_back()
    expect(page.get_by_label("X axis")).to_have_value("step")
    page.get_by_role("button", name="Whole range").click()
    expect(page).not_to_have_url(re.compile("first="))


def test_what_differs_and_the_space_of_runs(console: ConsolePage, compared: Comparison) -> None:
    page = console.page
    ids = ",".join(run.run_id for run in compared.runs)
    console.go(f"/compare?runs={ids}")
    plots = page.locator("figure.overlay")
    expect(plots.nth(1).locator("canvas")).to_be_visible()
    plots.first.locator(".u-over").hover()
    heads = plots.locator(".readout b")
    expect(heads.nth(1)).to_be_visible()  # one crosshair over all plots
    assert heads.first.inner_text() == heads.nth(1).inner_text()
    page.get_by_role("link", name="Differences").click()
    expect(page.locator("#differences")).to_contain_text("hyperparameters.lr")
    for tab in ("Parallel axes", "Scatter"):
        page.get_by_role("link", name=tab).click()
        expect(page.locator("#places tbody tr")).to_have_count(2)
        expect(page.locator("#places")).to_contain_text(
            number(compared.metrics["loss"][compared.runs[0].run_id].value)
        )
        expect(page.locator("figure canvas").first).to_be_visible()
    page.get_by_role("link", name="Parallel axes").click()
    ranges = page.get_by_role("form", name="Keep a range of an axis")
    ranges.get_by_label("Axis").select_option("metric.loss")
    losses = sorted(compared.metrics["loss"][run.run_id].value for run in compared.runs)
    ranges.get_by_label("To").fill(str(sum(losses) / 2))
    ranges.get_by_role("button", name="Keep these").click()
    expect(page.locator("#places tbody tr")).to_have_count(1)
    page.reload()
    expect(page.locator("#places tbody tr")).to_have_count(1)
    ranges.get_by_role("button", name="Keep all of this axis").click()
    expect(page.locator("#status")).to_have_text(re.compile("1 of 2|All 2"))
    page.get_by_role("link", name="Scatter").click()
    page.get_by_label("Colour").select_option("attribute.gpu_hours")
    page.reload()
    expect(page.get_by_label("Colour")).to_have_value("attribute.gpu_hours")
    with page.expect_download() as download:
        page.get_by_role("button", name="PNG").click()
    assert download.value.path().read_bytes().startswith(b"\x89PNG")


def points(page: Page) -> dict[tuple[str, int], tuple[float, float]]:
    """Value and smoothed value of all points by run and step, as the plot's CSV has them."""
    expect(page.locator("figure.overlay canvas")).to_be_visible()
    expect(page.locator("#status")).to_be_empty()
    with page.expect_download() as download:
        page.get_by_role("button", name="loss as CSV").click()
    rows = csv.DictReader(download.value.path().read_text(encoding="utf-8").splitlines())
    return {
        (row["run_id"], int(row["step"])): (float(row["value"]), float(row["smoothed"]))
        for row in rows
    }
