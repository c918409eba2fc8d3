// The head follows the run's metrics; the job itself is read again at most once a second.
import { Chart } from "../../charts.js";
import { badge, duration, number, percent } from "../../format.js";
import { atMost, follow, get } from "../../live.js";

const head = document.getElementById("job");
const id = head.dataset.job;
const points = new Map();
let metric = "loss";
const chart = new Chart(document.getElementById("curve"));

function put(name, content) {
  const cell = document.querySelector(`[data-cell="${name}"]`);
  if (cell && cell.textContent !== content) cell.textContent = content;
}

const draw = atMost(500, () => {
  const steps = [...points.keys()].sort((a, b) => a - b);
  document.getElementById("no-curve").hidden = steps.length > 0;
  chart.show(steps.length ? [{ name: metric, xs: steps, ys: steps.map((at) => points.get(at)) }] : []);
});

const refresh = atMost(1000, async () => {
  const job = await get(`/v1/training-jobs/${id}`).catch(() => null);
  if (!job) return;
  const place = document.querySelector("[data-cell=state]");
  if (place.firstElementChild?.dataset.state !== job.state) place.replaceChildren(badge(job.state));
  const text = job.waiting?.message ?? job.reason;
  put("why", text);
  document.querySelector("[data-cell=why]").hidden = !text;
  put("step", number(job.step));
  put("left", job.ended_at ? "–" : duration(job.estimated_remaining_s));
  put("loss", number(job.loss));
  put("tokens", number(job.tokens_per_s));
  put("mfu", percent(job.mfu, 1));
  put("gpus", `${job.gpus_allocated} of ${job.gpus}`);
  put("elapsed", duration(job.elapsed_s));
});

follow(`/training-runs/${id}/metrics`, {
  history: ({ curves }) => {
    const found = curves.find((curve) => curve.name === "loss") ?? curves[0];
    if (!found) return draw();
    metric = found.name;
    for (const point of found.points) points.set(point.step, point.value);
    draw();
  },
  step: ({ step, metrics }) => {
    if (!points.size && !(metric in metrics)) [metric] = Object.keys(metrics);
    if (metrics[metric] !== undefined) points.set(step, metrics[metric]);
    draw();
    refresh();
  },
  progress: refresh,
  end: refresh,
}, { onAgain: refresh });
const log = document.getElementById("log");
if (log) log.scrollTop = log.scrollHeight;
