// How runs look as lines: a colour and dashes by their place, so that no two of 56 are alike.
import { dashes, seriesColour } from "../../charts.js";

const COLOURS = 8;

/** Colours of all places as they are in this theme; read at once, as each change costs a layout. */
export function palette(count) {
  const all = Array.from({ length: COLOURS }, (_, at) => seriesColour(at));
  return Array.from({ length: count }, (_, place) => all[place % COLOURS]);
}

/** The swatches of the legend and of the table of runs. */
export function paintSwatches(runs, colours) {
  for (const row of document.querySelectorAll("[data-run]")) {
    const place = runs.findIndex((run) => run.id === row.dataset.run);
    const swatch = row.querySelector(".swatch");
    if (!swatch) continue;
    swatch.style.color = colours[place];
    swatch.firstElementChild.setAttribute("stroke-dasharray", dashes(place).join(" "));
  }
}
