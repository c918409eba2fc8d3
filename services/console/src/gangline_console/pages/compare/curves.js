// The plots of metrics: what is in sight is read first, a zoom reads finer points.
import { duration, number } from "../../format.js";
import { get } from "../../live.js";
import { Overlay, ofRest, ready } from "./overlay.js";
import { write } from "./view.js";

const AT_ONCE = 6;
const NAMES = { step: "step", time: "time since the start", tokens: "tokens" };
const TEXTS = { step: number, time: duration, tokens: number };

export async function start(shared) {
  const controls = document.getElementById("controls");
  const status = document.getElementById("status");
  const whole = document.getElementById("whole");
  const figures = [...document.querySelectorAll("figure.overlay")];
  const plots = new Map();
  const wanted = new Set(), inSight = new Set();
  let asked = 0, reading = false, alone = true, request = new AbortController();

  function take() {
    if (!(shared.axis in NAMES)) shared.axis = "step";
    shared.x = NAMES[shared.axis];
    shared.xText = TEXTS[shared.axis];
    if (shared.band === null) shared.band = controls.band.defaultChecked;
    else shared.band = shared.band === "1" || shared.band === true;
    controls.x.value = shared.axis;
    controls.smooth.value = shared.smooth;
    controls.querySelector("output").textContent = Number(shared.smooth).toFixed(2);
    controls.log.checked = shared.log;
    controls.band.checked = shared.band;
    ends();
  }

  function ends() {
    for (const unit of controls.querySelectorAll(".unit")) unit.textContent = shared.axis === "time" ? "s" : shared.x;
    for (const end of ["first", "last"]) controls[end].value = shared[end] ?? "";
    whole.hidden = shared.first === null && shared.last === null;
  }

  /** Read these plots' curves again, those in sight first; `asked` tells old answers from new. */
  function load(all = figures) {
    asked += 1;
    alone = true;
    request.abort();
    request = new AbortController();
    for (const figure of all) wanted.add(figure);
    pump();
  }

  async function pump() {
    if (reading) return;
    reading = true;
    while (wanted.size) {
      const seen = [...wanted].filter((figure) => inSight.has(figure));
      if (!seen.length) break;
      const batch = seen.slice(0, alone ? 1 : AT_ONCE); // the first picture comes soon
      alone = false;
      batch.forEach((figure) => wanted.delete(figure));
      await readBatch(batch);
    }
    reading = false;
  }

  /** The first address is the one that the page let the browser ask for already. */
  function address(batch) {
    const { firstRead } = document.getElementById("compare").dataset;
    if (asked === 1 && batch.length === 1 && batch[0] === figures[0]) return firstRead;
    const query = new URLSearchParams({ points: shared.points, axis: shared.axis });
    for (const run of shared.runs) query.append("run", run.id);
    for (const figure of batch) query.append("name", figure.dataset.name);
    for (const end of ["first", "last"]) if (shared[end] !== null) query.set(end, shared[end]);
    return `/v1/runs/overlay?${query}`;
  }

  async function readBatch(batch) {
    const now = asked;
    status.textContent = "Reading…";
    try {
      const { curves } = await get(address(batch), request.signal);
      await ready();
      if (now !== asked) return;
      for (const figure of batch) {
        const own = curves.filter((curve) => curve.name === figure.dataset.name).map(ofRest);
        if (!plots.has(figure)) plots.set(figure, new Overlay(figure, shared));
        plots.get(figure).show(own);
      }
      status.textContent = "";
    } catch (error) {
      if (now === asked) status.textContent = `The curves could not be read: ${error.message}.`;
    }
  }

  /** Show this range of the axis with finer points; null: from its start, or to its end. */
  function range(first, last) {
    if (first === shared.first && last === shared.last) return;
    Object.assign(shared, { first, last });
    write({ first, last }, { step: true });
    ends();
    redraw();
    load();
  }

  shared.zoom = (first, last) => {
    if (shared.axis === "step") [first, last] = [Math.floor(first), Math.ceil(last)];
    range(...[first, last].map((end) => Math.max(0, Number(end.toPrecision(8)))));
  };
  shared.whole = () => range(null, null);
  shared.point = (id) => {
    if (shared.lit === id) return;
    shared.lit = id;
    document.querySelector("#lines tr.lit")?.classList.remove("lit");
    if (id) document.querySelector(`#lines tr[data-run="${CSS.escape(id)}"]`)?.classList.add("lit");
    redraw();
  };

  /** Draw what was read again. */
  function redraw() {
    for (const plot of plots.values()) plot.draw();
  }

  controls.addEventListener("input", (event) => {
    if (event.target.name !== "smooth") return;
    shared.smooth = Number(controls.smooth.value);
    take();
    for (const plot of plots.values()) plot.smooth();
    redraw();
  });
  controls.addEventListener("change", (event) => {
    const { name } = event.target;
    if (name === "x") {
      Object.assign(shared, { axis: controls.x.value, first: null, last: null });
      write({ x: shared.axis === "step" ? null : shared.axis, first: null, last: null }, { step: true });
      take();
      return load();
    }
    if (name === "first" || name === "last") {
      const [first, last] = [controls.first, controls.last].map((end) => end.value === "" ? null : Number(end.value));
      if (first !== null && last !== null && first >= last) {
        status.textContent = "From must be below To.";
        return;
      }
      return range(first, last);
    }
    Object.assign(shared, { log: controls.log.checked, band: controls.band.checked });
    write({
      smooth: shared.smooth || null, log: shared.log ? 1 : null,
      band: name === "band" ? Number(shared.band) : new URLSearchParams(location.search).get("band"),
    });
    redraw();
  });
  controls.addEventListener("submit", (event) => event.preventDefault());
  whole.addEventListener("click", () => shared.whole());
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !document.querySelector("dialog[open]")) shared.whole();
  });

  const sight = new IntersectionObserver((seen) => {
    for (const { target, isIntersecting } of seen) {
      if (isIntersecting) inSight.add(target);
      else inSight.delete(target);
    }
    pump();
  }, { rootMargin: "200px" });
  take();
  for (const figure of figures) {
    if (figure.getBoundingClientRect().top < innerHeight) inSight.add(figure);
    sight.observe(figure);
  }
  load();
  return {
    redraw,
    changed() {
      take();
      for (const plot of plots.values()) plot.smooth();
      redraw();
      load();
    },
  };
}
