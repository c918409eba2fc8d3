// The trials on parallel axes: those of a comparison, coloured by how good a trial is.
import { colour } from "../../charts.js";
import { read } from "../compare/view.js";
import { start as axes } from "../compare/axes.js";

const STEPS = 24;

export async function start(study) {
  const shared = {
    ...read(), runs: [], hidden: new Set(), lit: null, palette: [], places: new Map(), found: null,
    source: `/v1/studies/${encodeURIComponent(study)}/parallel`,
    /** The gateway lists the best trials first; those without a value come last. */
    took(found) {
      shared.found = found;
      found.runs.forEach((run, at) => shared.places.set(run.run_id, at));
      paint();
    },
  };

  function paint() {
    const { runs } = shared.found;
    const shades = Array.from({ length: STEPS }, (_, at) => shade(at / (STEPS - 1)));
    shared.palette = runs.map((_, at) => shades[Math.floor((STEPS - 1) * at / Math.max(1, runs.length - 1))]);
  }

  const made = await axes(shared);
  return { redraw() { paint(); made.redraw(); } };
}

/** From the colour of good trials to the one of bad trials. */
function shade(share) {
  const [from, to] = [colour("--series-1"), colour("--idle")].map(parts);
  return `rgb(${from.map((part, at) => Math.round(part + share * (to[at] - part))).join(" ")})`;
}

const parts = (text) => [1, 3, 5].map((at) => Number.parseInt(text.slice(at, at + 2), 16));
