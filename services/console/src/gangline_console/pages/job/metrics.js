// Curves of one run: those so far come as `history`, then each step as it is reported.
import { Chart } from "../../charts.js";
import { byRank, duration, number } from "../../format.js";
import { atMost } from "../../live.js";
import { smoothed } from "../compare/shapes.js";
import { tail } from "./logs.js";

const MOST_POINTS = 4000;

/** Every second step of the older half, so that a page that stays open keeps few points. */
function thinned(steps) {
  const ordered = [...steps].sort((a, b) => a[0] - b[0]);
  const older = ordered.length / 2;
  return new Map(ordered.filter((_, at) => at >= older || at % 2 === 0));
}

/** Points of each metric by step: time, value, lowest, highest. The last report of a step counts. */
class Curves {
  constructor() {
    this.byName = new Map();
    this.start = null;
  }

  add(name, step, time, value, low = value, high = value) {
    if (!this.byName.has(name)) this.byName.set(name, new Map());
    this.start = this.start === null ? time : Math.min(this.start, time);
    const steps = this.byName.get(name);
    steps.set(step, [time, value, low, high]);
    if (steps.size > 2 * MOST_POINTS) this.byName.set(name, thinned(steps));
  }

  history({ curves }) {
    for (const curve of curves) {
      for (const point of curve.points) {
        this.add(curve.name, point.step, Date.parse(point.time), point.value, point.low, point.high);
      }
    }
  }

  step({ step, time_ms, metrics }) {
    for (const [name, value] of Object.entries(metrics)) this.add(name, step, time_ms, value);
  }

  /** One series for a chart: `axis` is step or time (seconds since the first point). With `band`
   * it has the lowest and highest values, where points stand for several steps. */
  series(name, axis, smoothing = 0, band = false) {
    const steps = [...(this.byName.get(name) ?? new Map()).entries()].sort((a, b) => a[0] - b[0]);
    const every = Math.ceil(steps.length / MOST_POINTS) || 1;
    const kept = steps.filter((_, at) => at % every === 0 || at === steps.length - 1);
    const xs = kept.map(([step, [time]]) => axis === "time" ? (time - this.start) / 1000 : step);
    const found = { xs, ys: smoothed(kept.map(([, [, value]]) => value), smoothing) };
    if (band && kept.some(([, [, , low, high]]) => low < high)) {
      found.lows = kept.map(([, [, , low]]) => low);
      found.highs = kept.map(([, [, , , high]]) => high);
    }
    if (axis === "time") { // times of an attempt that ran again may lie before
      const order = xs.map((_, at) => at).sort((a, b) => xs[a] - xs[b]);
      for (const [column, values] of Object.entries(found)) found[column] = order.map((at) => values[at]);
    }
    return { name, ...found };
  }
}

/** The curve of the loss, or of the first metric. */
export function overview() {
  const curves = new Curves();
  const figure = document.getElementById("curve");
  const chart = new Chart(figure);
  figure.hidden = true;
  const log = document.getElementById("log");
  if (log) log.scrollTop = log.scrollHeight;
  const further = log ? tail(log, 60) : () => {};
  const draw = atMost(500, () => {
    const name = curves.byName.has("loss") ? "loss" : [...curves.byName.keys()].sort(byRank)[0];
    document.getElementById("no-curve").hidden = name !== undefined;
    figure.hidden = name === undefined;
    if (name === undefined) return;
    figure.querySelector("figcaption").textContent = name === "loss" ? "Loss" : name;
    chart.show([curves.series(name, "step")]);
  });
  return {
    query: {},
    handlers: {
      log: (row) => {
        document.getElementById("no-lines")?.setAttribute("hidden", "");
        further(row);
      },
      history: (data) => { curves.history(data); draw(); },
      step: (data) => { curves.step(data); draw(); },
    },
  };
}

/** A chart for each metric; those out of sight are not drawn. */
export function metrics() {
  const curves = new Curves(), charts = new Map();
  const inSight = new Set(), stale = new Set(); // names of metrics
  const place = document.getElementById("plots"), axis = place.dataset.axis;
  const filter = document.getElementById("metric-filter");
  const smoothing = document.getElementById("smoothing");
  const logScale = document.getElementById("log-scale"), band = document.getElementById("band");
  const kept = new URLSearchParams(location.hash.slice(1));
  filter.value = kept.get("metric") ?? "";
  smoothing.value = kept.get("smoothing") ?? "0";
  logScale.checked = kept.has("log");
  band.checked = kept.get("band") !== "0";

  function chartOf(name) {
    if (charts.has(name)) return charts.get(name);
    const card = document.getElementById("plot").content.firstElementChild.cloneNode(true);
    const figure = card.querySelector("figure");
    figure.removeAttribute("id");
    figure.querySelector("figcaption").textContent = name;
    figure.querySelector(".plot").setAttribute("aria-label", `${name}; its table follows`);
    const after = [...place.children].find((other) => byRank(other.dataset.name, name) > 0);
    card.dataset.name = name;
    place.insertBefore(card, after ?? null);
    const made = new Chart(figure, {
      x: axis === "time" ? "time" : "step", sync: "metrics", log: logScale.checked,
      xValue: axis === "time" ? duration : number,
    });
    charts.set(name, made);
    sight.observe(card);
    return made;
  }

  /** Draw the charts in sight whose values changed; the others wait until they come into sight. */
  function paint() {
    for (const name of inSight) {
      if (stale.delete(name)) charts.get(name).show([curves.series(name, axis, Number(smoothing.value), band.checked)]);
    }
  }

  const sight = new IntersectionObserver((seen) => {
    for (const { target, isIntersecting } of seen) {
      if (isIntersecting) inSight.add(target.dataset.name);
      else inSight.delete(target.dataset.name);
    }
    paint();
  }, { rootMargin: "200px" });

  const draw = atMost(700, () => {
    document.getElementById("no-metrics").hidden = curves.byName.size > 0;
    for (const name of curves.byName.keys()) {
      const hidden = !name.toLowerCase().includes(filter.value.trim().toLowerCase());
      chartOf(name).figure.parentElement.hidden = hidden;
    }
    paint();
  });

  function changed(names) {
    for (const name of names) stale.add(name);
    draw();
  }

  function chosen() {
    const view = new URLSearchParams();
    if (filter.value) view.set("metric", filter.value);
    if (smoothing.value !== "0") view.set("smoothing", smoothing.value);
    if (logScale.checked) view.set("log", "1");
    if (!band.checked) view.set("band", "0");
    history.replaceState(null, "", `${location.pathname}${location.search}${view.size ? `#${view}` : ""}`);
    draw();
  }
  filter.addEventListener("input", chosen);
  for (const input of [smoothing, band]) {
    input.addEventListener("input", () => { changed(charts.keys()); chosen(); });
  }
  logScale.addEventListener("change", () => {
    for (const chart of charts.values()) {
      chart.options.log = logScale.checked;
      chart.draw();
    }
    chosen();
  });
  document.querySelector("#metrics-form select").addEventListener("change", (event) => event.target.form.requestSubmit());
  document.getElementById("metrics-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const query = new URLSearchParams({ tab: "metrics", x: event.target.x.value });
    location.assign(`${location.pathname}?${query}${location.hash}`);
  });
  return {
    query: { points: "500" },
    handlers: {
      history: (data) => { curves.history(data); changed(data.curves.map((curve) => curve.name)); },
      step: (data) => { curves.step(data); changed(Object.keys(data.metrics)); },
    },
  };
}
