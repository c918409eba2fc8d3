// The comparison: reads the view from the address, and draws the part that is chosen.
import { saveCsv, rowsOf } from "../../export.js";
import { narrowed } from "../../choose.js";
import { paintSwatches, palette } from "./lines.js";
import { keepLinks, read, write } from "./view.js";

const place = document.getElementById("compare");
const table = document.getElementById("lines");

/** What all plots share; the parts of the page fill in the rest. */
const shared = {
  runs: place ? JSON.parse(place.dataset.lines) : [],
  points: Number(place?.dataset.points),
  palette: [],
  lit: null,
  ...read(),
};
shared.places = new Map(shared.runs.map((run, at) => [run.id, at]));
shared.hidden = shared.hide;

const PARTS = {
  curves: () => import("./curves.js"),
  axes: () => import("./axes.js"),
  scatter: () => import("./scatter.js"),
  resources: () => import("./resources.js"),
};

function paint() {
  shared.palette = palette(shared.runs.length);
  paintSwatches(shared.runs, shared.palette);
}

function boxes() {
  for (const row of table.querySelectorAll("tr[data-run]")) {
    const box = row.querySelector("input[type=checkbox]");
    if (box) box.checked = !shared.hidden.has(row.dataset.run);
  }
}

async function begin() {
  paint();
  boxes();
  keepLinks();
  const part = PARTS[place.dataset.tab];
  if (!part) return;
  const note = document.getElementById("status");
  note.textContent = "Reading…";
  const { redraw, changed } = await part()
    .then(({ start }) => start(shared))
    .catch((error) => {
      note.textContent = `This could not be read: ${error.message}. Load the page again.`;
      throw error;
    });
  if (note.textContent === "Reading…") note.textContent = "";
  document.addEventListener("theme", () => { paint(); redraw(); });
  table.addEventListener("change", (event) => {
    const id = event.target.closest("tr[data-run]").dataset.run;
    if (event.target.checked) shared.hidden.delete(id);
    else shared.hidden.add(id);
    write({ hide: [...shared.hidden].join(",") });
    redraw();
  });
  for (const list of [table, document.getElementById("legend")]) {
    list?.addEventListener("mouseover", (event) =>
      light(event.target.closest("[data-run]")?.dataset.run ?? null));
    list?.addEventListener("mouseleave", () => light(null));
  }
  function light(id) {
    if (shared.lit === id) return;
    shared.lit = id;
    redraw();
  }
  addEventListener("popstate", () => {
    Object.assign(shared, read());
    shared.hidden = shared.hide;
    boxes();
    keepLinks();
    changed();
  });
}

document.addEventListener("click", (event) => {
  const id = event.target.closest("[data-csv]")?.dataset.csv;
  if (id) saveCsv(`comparison-${id}`, rowsOf(document.getElementById(id)));
});
narrowed(document.querySelector("form.choose"));
if (place) begin();
