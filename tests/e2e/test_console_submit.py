"""Submit in a real browser: errors while one types, the form in step, a job that runs."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from gangline.sdk import connect
from support.fixtures.platform import RunningPlatform
from support.harnesses.console_page import ConsolePage

FILE = """\
name: from-the-browser   # kept
team: default
run: 'true'
resources: {gpus: -1, memory_per_gpu_gb: 0.1}
"""

DROP = """(text) => {
  const data = new DataTransfer();
  data.items.add(new File([text], "job.yaml", { type: "text/yaml" }));
  document.getElementById("editor").dispatchEvent(
    new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
}"""


def test_a_bad_field_is_shown_while_one_types_and_a_good_file_becomes_a_job(
    platform: RunningPlatform, console: ConsolePage
) -> None:
    page = console.page
    console.go("/submit")
    area = page.get_by_label("Job file, YAML")
    area.fill(FILE)
    errors = page.locator("#errors")
    expect(errors).to_contain_text("resources.gpus")
    expect(errors.get_by_role("button")).to_have_text("Line 4")
    expect(page.locator("#lines .bad")).to_have_text("4")
    send = page.get_by_role("button", name="Submit", exact=True)
    expect(send).to_be_disabled()

    page.get_by_label("GPUs", exact=True).fill("1")
    expect(area).to_have_value(FILE.replace("gpus: -1", "gpus: 1"))
    expect(errors).to_be_empty()
    expect(page.locator("#checked")).to_contain_text("default uses")
    area.press("End")
    page.reload()
    expect(area).to_have_value(FILE.replace("gpus: -1", "gpus: 1"))
    expect(send).to_be_enabled()

    dropped = FILE.replace("gpus: -1", "gpus: 1").replace("from-the-browser", "dropped-here")
    page.evaluate(DROP, dropped)
    expect(area).to_have_value(dropped)
    area.fill(FILE.replace("gpus: -1", "gpus: 1"))
    expect(send).to_be_enabled()
    send.click()
    expect(page).to_have_url(re.compile("/console/jobs/from-the-browser-"))
    job_id = page.url.rpartition("/")[2]
    with connect(platform.client.url, platform.client.token) as gateway:
        assert gateway.wait(job_id, 120).state == "succeeded"
    console.go(f"/submit?from={job_id}")
    expect(area).to_have_value(re.compile("name: from-the-browser"))
