// The map and its figures follow /v1/changes; the lists are read again when they may have changed.
import { Chart } from "../../charts.js";
import { duration, number } from "../../format.js";
import { GpuMap, mapTable } from "../../gpumap.js";
import { atMost, follow, get, paced } from "../../live.js";
import { readAgain, replacePart } from "../../parts.js";

const place = document.getElementById("map");
const open = (node) => { location.href = `/console/nodes/${encodeURIComponent(node.node_id)}`; };
const map = new GpuMap(place, document.getElementById("legend"), { by: place.dataset.by, onPick: open });

function put(name, text, unit) {
  const cell = document.querySelector(`#figures [data-cell="${name}"]`);
  cell.textContent = text;
  if (unit) cell.nextElementSibling.textContent = unit;
}

function figures() {
  const nodes = [...map.nodes.values()], ready = nodes.filter((node) => node.status === "ready");
  const all = (some) => some.reduce((sum, node) => sum + node.gpus.length, 0);
  const used = (some) => some.reduce((sum, node) =>
    sum + node.gangs.reduce((gpus, gang) => gpus + gang.gpus.length, 0), 0);
  put("used", number(used(nodes)), `of ${number(all(nodes))}`);
  put("free", number(all(ready) - used(ready)));
  put("ready", number(ready.length), `of ${number(nodes.length)}`);
}

function largestGang(found) {
  const largest = found.largest_gangs.reduce((best, item) => !best || item.gpus > best.gpus ? item : best, null);
  put("largest", largest ? number(largest.gpus) : "0");
  const cell = document.querySelector('#figures [data-cell="largest"]').parentElement;
  cell.title = found.largest_gangs.map((item) =>
    `${item.model}: ${item.gpus} in all, ${item.in_one_rack} in one rack, ${item.on_one_node} on one node`).join("\n");
}

async function read() {
  try {
    const found = await get("/v1/gpus");
    if (found.nodes.length) map.show(found.nodes);
    else fill(document.getElementById("no-nodes").content.cloneNode(true));
    figures();
    largestGang(found);
    table();
  } catch (error) {
    if (!map.nodes.size) note(`The map cannot be read now: ${error.message}. It is tried again.`);
  }
}

function note(text) {
  const line = document.createElement("p");
  line.className = "dim";
  line.textContent = text;
  fill(line);
}

function fill(content) {
  place.replaceChildren(content);
  place.removeAttribute("aria-busy");
}

const table = () => mapTable(document.getElementById("map-table"), map.nodes.values());

/** Nodes and figures change at once; the largest gang needs the whole map, which may be long. */
const reread = () => document.hidden || read();
const soon = paced(reread), later = atMost(15_000, reread);
const again = () => (map.nodes.size > 100 ? later : soon)();
const figuresSoon = atMost(250, figures);
const lists = paced(async () => {
  const text = await readAgain();
  if (!text) return;
  const fresh = new DOMParser().parseFromString(text, "text/html");
  replacePart("lists", text);
  for (const stat of document.querySelectorAll("#figures .stat")) {
    if (["used", "free", "largest", "ready"].includes(stat.querySelector("[data-cell]")?.dataset.cell)) continue;
    const name = stat.querySelector("dt").textContent;
    const now = [...fresh.querySelectorAll("#figures .stat")].find((item) => item.querySelector("dt").textContent === name);
    if (now) stat.querySelector("dd").replaceChildren(...now.querySelector("dd").childNodes);
  }
});

const listsLater = atMost(10_000, lists);

function queue({ pending_jobs: pending }) {
  put("pending", number(pending), pending === 1 ? "job" : "jobs");
  listsLater();
}

const running = new Set(); // jobs whose start the lists have seen

function job(changed) {
  const runs = changed.state === "running", seen = running.has(changed.job_id);
  if (runs) running.add(changed.job_id);
  else running.delete(changed.job_id);
  const row = document.querySelector(`#lists tr[data-job="${CSS.escape(changed.job_id)}"]`);
  if (runs ? !row && !seen : row) return lists();
  if (!row) return;
  row.querySelector("[data-cell=step]").textContent =
    number(changed.step) + (changed.total_steps ? ` of ${number(changed.total_steps)}` : "");
  row.querySelector("[data-cell=left]").textContent = duration(changed.estimated_remaining_s);
}

document.querySelector(".choice").addEventListener("click", (event) => {
  const link = event.target.closest("a[data-by]");
  if (!link) return;
  event.preventDefault();
  for (const item of document.querySelectorAll(".choice a")) item.removeAttribute("aria-current");
  link.setAttribute("aria-current", "true");
  history.replaceState(null, "", link.href);
  map.colour(link.dataset.by);
});
document.getElementById("map-table").addEventListener("toggle", table);

const use = new Chart(document.getElementById("use"));
const UNITS = { h: [3_600_000, "hours from now"], min: [60_000, "minutes from now"], s: [1000, "seconds from now"] };
const YOUNG_H = 6, YOUNG_MIN = 5;

/** Means over 24 hours; over the time since the first node, if the platform is young. */
async function steps() {
  const path = "/v1/reports/utilization/steps?steps=96";
  const { steps: day } = await get(path);
  const first = day.find((step) => step.gpus_total > 0);
  const young = first && Date.now() - Date.parse(first.since) < 3_600_000 * YOUNG_H;
  if (!young) return ["h", day];
  const from = new URLSearchParams({ from: first.since });
  const { steps: since } = await get(`${path}&${from}`);
  const at = since.findIndex((step) => step.gpus_total > 0);
  const seen = since.slice(Math.max(0, at));
  return [Date.now() - Date.parse(seen[0]?.since) < 60_000 * YOUNG_MIN ? "s" : "min", seen];
}

async function uses() {
  const said = document.getElementById("no-use");
  try {
    const [unit, found] = await steps();
    const [ms, x] = UNITS[unit];
    const other = use.options.x !== x;
    Object.assign(use.options, { x, xValue: (value) => `${number(value, 2)} ${unit}` });
    const xs = found.map((step) => (Date.parse(step.since) - Date.now()) / ms);
    await use.show([
      { name: "allocated", xs, ys: found.map((step) => step.gpus_allocated) },
      { name: "up", xs, ys: found.map((step) => step.gpus_total) },
    ]);
    if (other) await use.draw();
    said.hidden = true;
  } catch (error) {
    said.hidden = false;
    said.textContent = `It cannot be read now: ${error.message}`;
  }
}
setInterval(() => document.hidden || uses(), 60_000);
document.addEventListener("visibilitychange", () => { again(); lists(); });

await read();
uses();
follow("/v1/changes", {
  node: (node) => { map.change(node); figuresSoon(); again(); },
  job, queue, alert: lists, snapshot: () => { again(); lists(); },
}, { onAgain: () => { again(); lists(); } });
