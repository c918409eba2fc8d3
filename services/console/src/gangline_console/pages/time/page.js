// The slider goes to a time. The map of GPUs and the steps of jobs at that time are read here.
import { exact, number } from "../../format.js";
import { GpuMap, mapTable } from "../../gpumap.js";

const slider = document.getElementById("slider");
const at = (moment) => `${new Date(Number(moment)).toISOString().slice(0, 19)}Z`;

slider?.addEventListener("input", () => {
  document.getElementById("chosen").textContent = exact(Number(slider.value));
});
slider?.addEventListener("change", () => {
  const query = new URLSearchParams(location.search);
  query.set("at", at(slider.value));
  location.search = query;
});

const place = document.getElementById("map");
async function read() {
  const query = new URLSearchParams({ time: place.dataset.at, limit: place.dataset.jobs, steps: "true" });
  const answer = await fetch(`/v1/history/at?${query}`);
  if (!answer.ok) throw new Error(`status ${answer.status}`);
  const { gpus, jobs } = await answer.json();
  new GpuMap(place, document.getElementById("legend")).show(gpus.nodes);
  const details = document.getElementById("map-table");
  details.addEventListener("toggle", () => mapTable(details, gpus.nodes));
  const steps = new Map(jobs.map((job) => [job.job_id, job.step]));
  for (const row of document.querySelectorAll("tr[data-job]")) {
    const step = steps.get(row.dataset.job) ?? null;
    if (step !== null) row.querySelector("[data-cell=step]").textContent = number(step);
  }
}

if (place) {
  read().catch(() => {
    place.removeAttribute("aria-busy");
    document.getElementById("no-map").hidden = false;
  });
}
