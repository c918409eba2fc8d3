// One stream for the page (/live with the parts of the tab), the head, and the script of the tab.
import { badge, duration, gpuTime, number, percent } from "../../format.js";
import { atMost, follow, get, paced } from "../../live.js";
import { readAgain, replacePart } from "../../parts.js";
import { logs } from "./logs.js";
import { metrics, overview } from "./metrics.js";

const head = document.getElementById("job");
const { job: id, tab, parts } = head.dataset;
const none = { handlers: {}, query: {} };
const sent = sessionStorage.getItem("submitted"); // the draft of this job; see submit/page.js
if (sent) for (const name of [sent, "submitted"]) sessionStorage.removeItem(name);

function put(name, content) {
  const cell = document.querySelector(`[data-cell="${name}"]`);
  if (cell && cell.textContent !== content) cell.textContent = content;
}

function show(job) {
  const place = document.querySelector("[data-cell=state]");
  if (place.firstElementChild?.dataset.state !== job.state) place.replaceChildren(badge(job.state));
  const failed = job.failure && job.state === "failed" ? job.failure.message : null;
  const why = job.waiting?.message ?? failed ?? job.reason;
  put("why", why);
  document.querySelector("[data-cell=why]").hidden = !why;
  put("step", number(job.step));
  put("left", duration(job.ended_at ? null : job.estimated_remaining_s));
  put("loss", number(job.loss));
  put("tokens", number(job.tokens_per_s));
  put("mfu", percent(job.mfu, 1));
  if (typeof job.cpus !== "number") put("gpus", `${job.gpus_allocated} of ${job.gpus}`);
  put("use", number(job.gpu_utilization, 3) + (job.gpu_utilization === null ? "" : " %"));
  put("elapsed", duration(job.elapsed_s));
  put("gpu_time", gpuTime(job.gpu_seconds + job.running_gpu_seconds));
  put("attempt", String(job.attempt));
}

const refresh = atMost(1000, async () => {
  const job = await get(`/v1/training-jobs/${id}`).catch(() => null);
  if (job) show(job);
});

/** Parts of the page that the server writes are exchanged when an event may have changed them. */
const exchange = paced(async () => {
  const places = [...document.querySelectorAll("[data-fresh]")].filter((place) =>
    !place.querySelector("details[open]") && !place.contains(document.activeElement));
  const text = places.length ? await readAgain() : null;
  if (text) for (const place of places) replacePart(place.id, text);
});

const part = { overview, metrics, logs: () => logs(id) }[tab]?.() ?? none;
const query = new URLSearchParams(parts.split(" ").map((name) => ["part", name]));
for (const [name, value] of Object.entries(part.query)) if (value) query.set(name, value);
follow(`/v1/training-jobs/${id}/live?${query}`, {
  ...part.handlers,
  event: (event) => { refresh(); if (event.topic !== "gangline.requests") exchange(); },
  step: (data) => { part.handlers.step?.(data); refresh(); },
  progress: refresh,
  end: () => { refresh(); exchange(); },
}, { onAgain: () => { part.again?.(); refresh(); exchange(); } });

/** MLflow's page of the run; its address has the experiment, which only MLflow knows. */
document.querySelector("[data-run]").addEventListener("click", async (event) => {
  const { href, dataset: { run } } = event.currentTarget;
  event.preventDefault();
  const found = await get(`${new URL(href).pathname}api/2.0/mlflow/runs/get?run_id=${run}`).catch(() => null);
  location.assign(found ? `${href}#/experiments/${found.run.info.experiment_id}/runs/${run}` : href);
});

const { every } = document.querySelector("[data-fresh]")?.dataset ?? {};
if (every && head.dataset.ended !== "1") setInterval(exchange, 1000 * Number(every));

document.addEventListener("click", async (event) => {
  const source = event.target.closest("[data-copies]");
  if (!source) return;
  const text = document.getElementById(source.dataset.copies).textContent;
  await navigator.clipboard.writeText(text).then(
    () => { source.textContent = "Copied"; },
    () => { source.textContent = "Select it and copy: the browser refused"; },
  );
});
