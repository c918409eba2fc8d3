// The table follows /v1/changes: rows change in place, new jobs come to the top of the first page.
// The counts by state are read again when a job's state changed.
import { NONE, badge, duration, number, percent, time } from "../../format.js";
import { follow, get, paced } from "../../live.js";

const MOST_ROWS = 500;
const table = () => document.getElementById("jobs");

function put(row, name, content, title) {
  const cell = row.querySelector(`[data-cell="${name}"]`);
  if (!cell) return;
  const node = typeof content === "string" ? document.createTextNode(content) : content;
  if (cell.textContent === node.textContent) return;
  cell.replaceChildren(node);
  if (title !== undefined) cell.title = title;
}

const why = (job) => job.waiting?.message
  ?? (job.failure && job.state === "failed" ? job.failure.message : job.reason);

function fill(row, job) {
  const ended = job.ended_at !== null;
  if (row.querySelector("[data-cell=state]").textContent.trim() !== badge(job.state).textContent.trim()) {
    put(row, "state", badge(job.state));
    row.classList.remove("changed");
    requestAnimationFrame(() => row.classList.add("changed"));
  }
  put(row, "why", why(job), why(job));
  put(row, "gpus", typeof job.cpus === "number" ? `${number(job.cpus)} CPU` : String(job.gpus));
  put(row, "priority", String(job.priority));
  put(row, "attempt", String(job.attempt));
  put(row, "tokens", number(job.tokens_per_s));
  put(row, "mfu", percent(job.mfu, 1));
  put(row, "loss", number(job.loss));
  put(row, "left", duration(ended ? null : job.estimated_remaining_s));
  put(row, "elapsed", duration(job.elapsed_s));
  put(row, "started", time(job.started_at));
  const bar = row.querySelector(".bar");
  if (bar) {
    bar.querySelector("progress").max = job.total_steps || 1;
    bar.querySelector("progress").value = job.step ?? 0;
    bar.querySelector(".num").textContent =
      number(job.step) + (job.total_steps ? ` of ${number(job.total_steps)}` : "");
  }
  const pick = row.querySelector("input[type=checkbox]");
  pick.disabled = ended;
  if (ended) pick.checked = false;
}

function made(job) {
  const row = document.getElementById("row").content.firstElementChild.cloneNode(true);
  row.dataset.job = job.job_id;
  const pick = row.querySelector("input[type=checkbox]");
  pick.value = job.job_id;
  pick.setAttribute("aria-label", `Select ${job.name}`);
  const link = row.querySelector("a.row");
  link.href = `/console/jobs/${encodeURIComponent(job.job_id)}`;
  link.textContent = job.name;
  const id = row.querySelector(".id");
  id.textContent = job.job_id === job.name ? "" : job.job_id;
  id.title = job.job_id;
  put(row, "team", job.team);
  put(row, "user", job.user);
  put(row, "project", job.project ?? NONE);
  put(row, "submitted", time(job.submitted_at));
  return row;
}

function passes(job, filter) {
  return (!filter.state.length || filter.state.includes(job.state))
    && (!filter.team || filter.team === job.team)
    && (!filter.user || filter.user === job.user)
    && job.name.startsWith(filter.name ?? "");
}

const MOST_STATES = 2000;
const states = new Map(); // by job, as the table or the stream had it; the oldest are forgotten
for (const cell of document.querySelectorAll("#rows [data-state]")) {
  states.set(cell.closest("tr").dataset.job, cell.dataset.state);
}

const counts = paced(async () => {
  if (document.hidden) return;
  const filter = JSON.parse(table().dataset.filter), query = new URLSearchParams();
  for (const name of ["team", "user", "project", "name", "text"]) {
    if (filter[name]) query.set(name, filter[name]);
  }
  const found = await get(`/v1/training-jobs/counts?${query}`).catch(() => null);
  if (found) for (const link of document.querySelectorAll("#counts a")) {
    const count = found.states[link.dataset.state] ?? 0;
    link.hidden = !count;
    link.querySelector(".num").textContent = number(count);
  }
});

function changed(job) {
  if (states.get(job.job_id) !== job.state) {
    states.set(job.job_id, job.state);
    if (states.size > MOST_STATES) states.delete(states.keys().next().value);
    counts();
  }
  const place = table();
  const row = place.querySelector(`tr[data-job="${CSS.escape(job.job_id)}"]`);
  if (row) return fill(row, job);
  if (place.dataset.first !== "1" || !passes(job, JSON.parse(place.dataset.filter))) return;
  const rows = document.getElementById("rows");
  if (!rows) return location.reload(); // the page said that there are none
  // By the server's clock: that of this machine may be wrong.
  if (Date.parse(job.submitted_at) < Date.parse(place.dataset.at)) return; // it is on a later page
  const fresh = made(job);
  fill(fresh, job);
  rows.prepend(fresh);
  const old = rows.children.length > MOST_ROWS && !rows.lastElementChild.querySelector(":checked");
  if (old) rows.lastElementChild.remove(); // it is on a later page
}

function picked() {
  const count = table().querySelectorAll("input[name=job]:checked").length;
  const button = document.getElementById("cancel");
  if (!button) return;
  button.disabled = !count;
  button.textContent = count ? `Cancel ${count} selected…` : "Cancel selected…";
}

/** Read the list again: what changed before the stream began is not sent. */
async function reread() {
  const query = new URLSearchParams();
  for (const [name, value] of new URLSearchParams(location.search)) {
    if (value && !["cancelled", "column", "order"].includes(name)) query.append(name, value);
  }
  const [order, reverse] = (JSON.parse(table().dataset.filter).order || "created").split(" ");
  query.set("order_by", order);
  query.set("reverse", Boolean(reverse));
  const { jobs } = await get(`/v1/training-jobs?${query}`).catch(() => ({ jobs: [] }));
  jobs.reverse().forEach(changed);
  counts();
}

document.addEventListener("change", picked);
document.addEventListener("htmx:afterSwap", picked);
picked();
follow("/v1/changes?kind=job", { job: changed, snapshot: reread }, { onAgain: reread });
document.addEventListener("visibilitychange", counts);
