// Curves by uPlot: colours from the style sheet, sizes from the place, a table of the same points.
import { number } from "./format.js";

const base = new URL("vendor/", import.meta.url);
const LEGEND_PX = 28;
const EDGE = { label: "", class: "edge", width: 0, spanGaps: true, points: { show: false } };
let loading = null;

/** Load a classic script of vendor/ once. */
export function vendor(name) {
  return new Promise((done, failed) => {
    const script = document.createElement("script");
    script.src = new URL(name, base);
    script.onload = done;
    script.onerror = () => failed(new Error(`${name} could not be loaded`));
    document.head.append(script);
  });
}

function uplot() {
  loading ??= (() => {
    const style = document.createElement("link");
    style.rel = "stylesheet";
    style.href = new URL("uPlot.min.css", base);
    document.head.append(style);
    return vendor("uPlot.iife.min.js").then(() => window.uPlot);
  })();
  return loading;
}

/** The width of an axis whose ticks have these texts. */
const roomFor = (texts) => 16 + Math.max(40, ...(texts ?? []).map((text) => 8 * String(text).length));

/** The value of a variable of the style sheet. */
export const colour = (name) =>
  getComputedStyle(document.documentElement).getPropertyValue(name).trim();
export const seriesColour = (index) => colour(`--series-${index % 8 + 1}`);

/** The dashes of a series: with its colour no two of 56 are alike, and the first 7 differ without. */
const DASHES = [[], [8, 3], [2, 2], [12, 3, 2, 3], [16, 4], [6, 3, 1, 3, 1, 3], [4, 5]];
export const dashes = (index) => DASHES[index % DASHES.length];

/**
 * A chart in a figure that the macro `chart` made.
 *
 * `show([{name, xs, ys, lows, highs}])` draws series over one axis; xs ascend. With `lows` and
 * `highs` a band reaches from the lowest to the highest values. Options: `x`, the axis's name;
 * `xValue` and `yValue`, functions to text; `log`, a logarithmic y axis; `sync`, a key that
 * crosshairs share.
 */
export class Chart {
  constructor(figure, { x = "step", xValue = number, yValue = number, log = false, sync = "" } = {}) {
    this.figure = figure;
    this.options = { x, xValue, yValue, log, sync };
    this.series = [];
    this.plot = null;
    this.place = figure.querySelector(".plot");
    document.addEventListener("theme", () => this.draw());
    new ResizeObserver(() => this.plot?.setSize(this.size())).observe(this.place);
    figure.querySelector("details")?.addEventListener("toggle", () => this.fillTable());
  }

  size() {
    return { width: this.place.clientWidth, height: this.place.clientHeight - LEGEND_PX };
  }

  async show(series) {
    const same = this.plot && series.length === this.series.length
      && series.every((item, at) => item.name === this.series[at].name
        && Boolean(item.lows) === Boolean(this.series[at].lows));
    this.series = series;
    if (same) this.plot.setData(this.data());
    else await this.draw();
    this.fillTable();
  }

  data() {
    const tables = this.series.map(({ xs, ys, lows, highs }) => lows ? [xs, ys, highs, lows] : [xs, ys]);
    return tables.length === 1 ? tables[0] : window.uPlot.join(tables);
  }

  async draw() {
    const uPlot = await uplot();
    this.plot?.destroy();
    this.plot = null;
    this.place.replaceChildren();
    if (!this.series.length) return;
    const { x, xValue, yValue, log, sync } = this.options;
    const axis = {
      stroke: colour("--dim"), grid: { stroke: colour("--grid"), width: 1 },
      ticks: { stroke: colour("--grid"), width: 1 }, font: "12px system-ui, sans-serif",
    };
    this.plot = new uPlot({
      ...this.size(),
      legend: { show: true, live: true },
      cursor: { sync: sync ? { key: sync } : undefined, points: { size: 6 } },
      scales: { x: { time: false }, y: log ? { distr: 3 } : {} },
      axes: [
        { ...axis, size: 34, space: 72, values: (_, found) => found.map((value) => xValue(value)) },
        { ...axis, space: 24, size: (_, texts) => roomFor(texts), values: (_, found) => found.map((value) => value === null ? "" : yValue(value)) },
      ],
      series: [
        { label: x, value: (_, value) => value === null ? "–" : xValue(value) },
        ...this.series.flatMap((item, index) => [{
          label: item.name, stroke: seriesColour(index), width: 1.5, spanGaps: true,
          dash: dashes(index),
          points: { show: item.xs.length < 2 },
          value: (_, value) => value === null || value === undefined ? "–" : yValue(value),
        }, ...(item.lows ? [EDGE, EDGE] : [])]),
      ],
      bands: this.bands(),
    }, this.data(), this.place);
  }

  /** The bands between the highest and the lowest values, by the places of their series. */
  bands() {
    const found = [];
    let at = 1;
    this.series.forEach((item, index) => {
      if (item.lows) found.push({ series: [at + 1, at + 2], fill: `${seriesColour(index)}33` });
      at += item.lows ? 3 : 1;
    });
    return found;
  }

  fillTable() {
    const table = this.figure.querySelector("table.data");
    if (!table || !this.figure.querySelector("details").open) return;
    const rows = [];
    for (const item of this.series) {
      const every = Math.max(1, Math.ceil(item.xs.length / 100));
      item.xs.forEach((at, index) => {
        if (index % every === 0 || index === item.xs.length - 1) {
          const values = [item.ys, ...(item.lows ? [item.lows, item.highs] : [])];
          rows.push([item.name, this.options.xValue(at), ...values.map((column) => this.options.yValue(column[index]))]);
        }
      });
    }
    table.replaceChildren(
      tableRow("th", ["series", this.options.x, "value", ...(this.series.some((item) => item.lows) ? ["lowest", "highest"] : [])]),
      ...rows.map((cells) => tableRow("td", cells)),
    );
  }
}

/** A row of a table: cells of a kind, td or th, with these texts. */
export function tableRow(kind, texts) {
  const made = document.createElement("tr");
  for (const text of texts) {
    const cell = document.createElement(kind);
    cell.textContent = text;
    made.append(cell);
  }
  return made;
}
