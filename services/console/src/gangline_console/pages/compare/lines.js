// How runs look as lines: a colour and dashes by their place, so that no two of 56 are alike.
import { seriesColour } from "../../charts.js";

const DASHES = [[], [6, 3], [2, 2], [10, 3, 2, 3], [12, 4], [4, 4, 1, 4], [1, 3]];
const COLOURS = 8;

export const dashes = (place) => DASHES[Math.floor(place / COLOURS) % DASHES.length];

/** Colours of all places as they are in this theme; read at once, as each change costs a layout. */
export function palette(count) {
  const all = Array.from({ length: COLOURS }, (_, at) => seriesColour(at));
  return Array.from({ length: count }, (_, place) => all[place % COLOURS]);
}

/** The swatches of the table of runs. */
export function paintSwatches(table, runs, colours) {
  for (const row of table.querySelectorAll("tr[data-run]")) {
    const place = runs.findIndex((run) => run.id === row.dataset.run);
    const swatch = row.querySelector(".swatch");
    if (!swatch) continue;
    swatch.style.color = colours[place];
    swatch.firstElementChild.setAttribute("stroke-dasharray", dashes(place).join(" "));
  }
}
