"""Pages follow the stream: in a browser with a clock that stands still, without a platform."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, Route, expect
from pydantic import BaseModel

from gangline_schemas.api.alerts import AlertList, SilenceList
from gangline_schemas.api.cluster import GpuMap, MapNode, NodeList, Queue, TeamList
from gangline_schemas.api.jobs import JobCounts, JobPage
from gangline_schemas.api.logs import LogLine, LogPage
from support.builders.console import AT, alert, console, job, node
from support.fakes.console_gateway import problem

SITE = "http://console.test"
STREAM = """window.EventSource = class extends EventTarget {
  constructor() { super(); this.readyState = 1; window.source = this; }
  close() {}
};"""
"""In place of the stream: events come when the test sends them."""
SEND = """([name, data]) =>
  source.dispatchEvent(new MessageEvent(name, { data: JSON.stringify(data) }))"""


FLOOD = """async (count) => {
  const place = document.getElementById("lines");
  const seen = { rows: 0, added: 0, added_at_once: 0 };
  const watch = new MutationObserver((records) => {
    const added = records.reduce((sum, record) => sum + record.addedNodes.length, 0);
    seen.rows = Math.max(seen.rows, place.children.length);
    seen.added += added;
    seen.added_at_once = Math.max(seen.added_at_once, added);
  });
  watch.observe(place, { childList: true });
  for (let line = 0; line < count; line += 1) {
    const row = { attempt: 1, rank: 0, line: line + 1, node_id: "n", stream: "stdout",
      time: "2026-11-26T03:00:00.000Z", text: `line ${line}` };
    source.dispatchEvent(new MessageEvent("log", { data: JSON.stringify(row) }));
    if (line % 5000 === 0) await new Promise(requestAnimationFrame);
  }
  while (!place.lastElementChild.textContent.includes(`line ${count - 1}`)) {
    await new Promise(requestAnimationFrame);
  }
  return seen;
}"""
"""Lines come as fast as the page takes them; `added_at_once`: within one task of the page."""


class Waiting(BaseModel):
    """The event of a queue that changed."""

    pending_jobs: int


class Site:
    """A page of the console. `answers` are what REST says from now on."""

    def __init__(self, page: Page, pool: ThreadPoolExecutor) -> None:
        self.page, self._pool = page, pool
        self._client, gateway = console({"GET /v1/teams": TeamList(teams=[])})
        self.answers = gateway.answers
        page.add_init_script(STREAM)
        page.route(f"{SITE}/**", self._answer)

    def go(self, path: str, *, still: bool = True) -> None:
        """Open a page; once it follows its stream, its clock stands still."""
        if still:
            self.page.clock.install(time=AT)
        self.page.goto(f"{SITE}/console{path}")
        self.page.wait_for_function("window.source")
        if still:
            self.page.clock.pause_at("2027-01-01")

    def send(self, name: str, data: BaseModel) -> None:
        """An event of the stream, a second after the last one. Then the clock stands still."""
        self.page.clock.run_for(1000)
        self.page.evaluate(SEND, [name, data.model_dump(mode="json")])
        self.page.clock.run_for(1)

    def _answer(self, route: Route) -> None:
        parts = urlsplit(route.request.url)
        if parts.path.startswith("/v1/"):
            answer = self.answers.get(f"GET {parts.path}")
            if answer is None:
                return route.fulfill(status=404)
            body = answer.model_dump_json()
            return route.fulfill(content_type="application/json", body=body)
        # The browser's thread has an event loop: the console's runs in another one.
        found = self._pool.submit(self._client.get, f"{parts.path}?{parts.query}").result()
        headers = {"content-type": found.headers["content-type"]}
        return route.fulfill(status=found.status_code, headers=headers, body=found.content)


@pytest.fixture
def site(chromium: Browser) -> Iterator[Site]:
    with chromium.new_context() as context, ThreadPoolExecutor(1) as pool:
        yield Site(context.new_page(), pool)


def test_alerts_are_shown_when_they_are_raised(site: Site) -> None:
    site.answers["GET /v1/silences"] = SilenceList(silences=[])
    site.answers["GET /v1/alerts"] = AlertList(alerts=[])
    site.go("/alerts")
    expect(site.page.get_by_text("No alert is firing")).to_be_visible()
    for count in (1, 2):
        found = [alert(number) for number in range(count)]
        site.answers["GET /v1/alerts"] = AlertList(alerts=found)
        site.send("alert", found[-1])
        expect(site.page.locator("tr[data-alert]")).to_have_count(count)
        expect(site.page.locator(".head")).to_contain_text(f"{count} firing")


def test_the_counts_of_jobs_follow_their_states(site: Site) -> None:
    def counted(**states: int) -> JobCounts:
        return JobCounts(total=sum(states.values()), states=states)

    known = job()
    site.answers["GET /v1/training-jobs"] = JobPage(jobs=[known], cursor=None)
    site.answers["GET /v1/training-jobs/counts"] = counted(running=1)
    site.go("/jobs")
    shown = site.page.locator("#counts a:visible")
    expect(shown).to_have_text(["▶running 1"])
    site.answers["GET /v1/training-jobs/counts"] = counted(failed=1)
    site.send("job", known.model_copy(update={"state": "failed"}))
    expect(shown).to_have_text(["✕failed 1"])
    site.answers["GET /v1/training-jobs/counts"] = counted(failed=1, running=1)
    site.send("job", known.model_copy(update={"job_id": "another-1"}))
    expect(shown).to_have_text(["▶running 1", "✕failed 1"])


def test_a_new_job_comes_to_the_table_whatever_the_browsers_clock_says(site: Site) -> None:
    site.answers["GET /v1/training-jobs"] = JobPage(jobs=[job()], cursor=None)
    site.answers["GET /v1/training-jobs/counts"] = JobCounts(total=1, states={"running": 1})
    site.page.clock.install(time="2100-01-01")
    site.go("/jobs", still=False)
    for name, days in (("older-1", -1), ("newer-1", 1)):
        submitted = datetime.now(UTC) + timedelta(days=days)
        site.send("job", job(name, name=name, submitted_at=submitted))
    expect(site.page.locator("#rows a.row")).to_have_text(["newer-1", "llama"])


def test_a_long_table_of_nodes_follows_each_change(site: Site) -> None:
    def nodes(status: str) -> NodeList:
        names = [f"n-{number:03}" for number in range(150)]
        return NodeList(nodes=[node(node_id=name, status=status) for name in names])

    site.answers["GET /v1/nodes"] = nodes("ready")
    site.go("/nodes")
    for status in ("draining", "cordoned"):
        site.answers["GET /v1/nodes"] = nodes(status)
        site.send("node", site.answers["GET /v1/nodes"].nodes[7])
        expect(site.page.locator('tr[data-node="n-007"]')).to_contain_text(status)


def test_figures_of_the_overview_change_with_the_events_themselves(site: Site) -> None:
    part = {
        "node_id": "n-1", "status": "ready", "why": "", "straggler": "", "block": "", "rack": "",
        "model": "h100", "gpus": [0, 1, 2, 3], "utilization": None,
        "gangs": [{"job_id": "llama", "team": "nlp", "gpus": [0, 1, 2], "first_rank": 0}],
    }  # fmt: skip
    busy = MapNode.model_validate(part)
    site.answers["GET /v1/gpus"] = GpuMap(
        at=AT, gpus=4, nodes_all=1, gpus_ready=4, gpus_used=3, largest_gangs=[], nodes=[busy]
    )
    site.answers["GET /v1/training-jobs"] = JobPage(jobs=[], cursor=None)
    site.answers["GET /v1/queue"] = Queue(queue=[], pending_jobs=0, pending_gpus=0)
    site.answers["GET /v1/alerts"] = AlertList(alerts=[])
    site.answers["GET /v1/incidents"] = problem(503, "history-away", "ClickHouse does not answer")
    site.go("/overview")
    figures = site.page.locator("#figures")
    expect(figures.locator("[data-cell=used]")).to_have_text("3")
    for path in ("gpus", "training-jobs"):  # neither the map nor the page can be read again
        del site.answers[f"GET /v1/{path}"]
    site.send("node", busy.model_copy(update={"gangs": []}))
    expect(figures.locator("[data-cell=used]")).to_have_text("0")
    expect(figures.locator("[data-cell=free]")).to_have_text("4")
    site.send("queue", Waiting(pending_jobs=1))
    expect(figures).to_contain_text("Waiting1 job")


def log_line(number: int) -> LogLine:
    return LogLine(
        attempt=1, rank=0, line=number, node_id="n", time=AT, stream="stdout", text=f"line {number}"
    )


def open_log(site: Site, count: int) -> None:
    """Open the log of a job of which history has so many lines."""
    path = "GET /v1/training-jobs/llama-0a1b"
    site.answers[path] = job()
    site.answers[f"{path}/logs"] = LogPage(lines=list(map(log_line, range(count))), cursor=None)
    site.go("/jobs/llama-0a1b?tab=logs")
    expect(site.page.locator("#lines .line")).to_have_count(count)


def test_the_end_of_a_log_has_the_lines_that_history_does_not_have_yet(site: Site) -> None:
    open_log(site, 400)
    site.page.get_by_role("button", name="First line").click()
    expect(site.page.locator("#log-note")).to_have_text("400 lines here")
    site.send("log", log_line(400))
    site.page.get_by_role("button", name="Last line").click()
    expect(site.page.locator("#lines .line").last).to_contain_text("line 400")
    expect(site.page.locator("#lines .line")).to_have_count(401)


def test_a_log_has_no_hole_where_its_stream_was_cut(site: Site) -> None:
    open_log(site, 1)
    site.answers["GET /v1/training-jobs/llama-0a1b/logs"] = LogPage(
        lines=[log_line(0), log_line(1)], cursor=None
    )
    site.page.evaluate("source.cut = true")
    site.send("dropped", Waiting(pending_jobs=0))
    site.page.clock.run_for(1000)
    site.page.wait_for_function("!source.cut")
    site.page.evaluate("source.onopen()")
    site.send("log", log_line(2))
    numbers = [re.compile(f"line {number}$") for number in range(3)]
    expect(site.page.locator("#lines .line")).to_have_text(numbers)


@pytest.mark.nightly
def test_a_million_lines_put_few_rows_into_the_page_at_once(site: Site) -> None:
    path = "GET /v1/training-jobs/llama-0a1b"
    first = log_line(0).model_copy(update={"text": "the first line"})
    site.answers[path] = job()
    site.answers[f"{path}/logs"] = LogPage(lines=[first], cursor=None)
    site.go("/jobs/llama-0a1b?tab=logs", still=False)
    lines, note = site.page.locator("#lines .line"), site.page.locator("#log-note")
    expect(lines).to_have_text([re.compile("the first line")])
    seen = site.page.evaluate(FLOOD, 1_000_000)
    assert seen["added_at_once"] <= 400
    assert seen["rows"] <= lines.count() == 2000
    passed = re.search(r"([0-9,]+) passed too fast", note.inner_text())
    assert passed
    assert seen["added"] + int(passed[1].replace(",", "")) == 1_000_000, "each line counts"
    site.page.get_by_role("button", name="First line").click()
    expect(lines.first).to_contain_text("the first line")
