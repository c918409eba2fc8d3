// What the runs used over time: GPUs, CPU, memory, GPU-hours and cost, by node agents' metrics.
import { duration } from "../../format.js";
import { get } from "../../live.js";
import { Overlay, ready } from "./overlay.js";

export async function start(shared) {
  const status = document.getElementById("status");
  const plots = [];
  Object.assign(shared, {
    axis: "time", x: "time since the start", xText: duration, smooth: 0, log: false, band: false, first: null,
    last: null,
  });
  const redraw = () => plots.forEach((plot) => plot.draw());
  shared.zoom = (first, last) => { Object.assign(shared, { first, last }); redraw(); };
  shared.whole = () => { Object.assign(shared, { first: null, last: null }); redraw(); };
  shared.point = (id) => { if (shared.lit !== id) { shared.lit = id; redraw(); } };
  const query = new URLSearchParams({ points: shared.points });
  for (const run of shared.runs) query.append("run", run.id);
  try {
    const { curves } = await get(`/v1/runs/resources?${query}`);
    await ready();
    for (const figure of document.querySelectorAll("figure.overlay")) {
      const own = curves.map((curve) => of(curve, figure.dataset.name)).filter((item) => item.xs.length);
      figure.hidden = !own.length;
      if (!own.length) continue;
      const plot = new Overlay(figure, shared);
      plots.push(plot);
      plot.show(own);
    }
    status.textContent = plots.length ? ""
      : "Node agents took no system metrics of these runs. They take them every 30 s of a running job.";
  } catch (error) {
    status.textContent = `The resources could not be read: ${error.message}.`;
  }
  return { redraw, changed: redraw };
}

/** One quantity of a run's points; its point of time has no step. */
function of(curve, name) {
  const points = curve.points.filter((point) => point[name] !== null);
  const ys = points.map((point) => point[name]);
  return {
    id: curve.run_id, steps: points.map(() => null), xs: points.map((point) => point.x), ys,
    lows: ys, highs: ys,
  };
}
