// One plot of one metric of all runs. uPlot has the axes, the crosshair and the zoom; the lines are
// drawn here, as each run has its own places on the axis.
import { colour, dashes, tableRow, vendor } from "../../charts.js";
import { saveCsv, savePng } from "../../export.js";
import { number } from "../../format.js";
import { extent, logTicks, nearest, roomy, smoothed, span } from "./shapes.js";

const SECONDS = [
  1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400,
  172800, 432000, 864000,
];
const SYNC = "compare", READ_OUT = 8, TABLE_ROWS = 12;

/** Curves of REST's overlay as this file takes them: {id, steps, xs, ys, lows, highs}. */
export const ofRest = (curve) => ({
  id: curve.run_id, steps: curve.step, xs: curve.x, ys: curve.value, lows: curve.low,
  highs: curve.high,
});

export class Overlay {
  /**
   * `shared`: what all plots of the page have in common, {runs, places, hidden, palette, lit, x,
   * xText, log, band, smooth, first, last, range(), zoom(first, last), whole(), point(run)}.
   */
  constructor(figure, shared) {
    this.figure = figure;
    this.shared = shared;
    this.name = figure.querySelector("figcaption span").textContent;
    this.place = figure.querySelector(".plot");
    this.curves = [];
    this.plot = null;
    this.read = document.createElement("div");
    this.read.className = "readout";
    this.read.hidden = true;
    figure.addEventListener("click", (event) => {
      const kind = event.target.closest("[data-save]")?.dataset.save;
      if (kind === "csv") saveCsv(this.name, this.rows());
      if (kind === "png") this.png();
    });
    figure.querySelector("details").addEventListener("toggle", () => this.fillTable());
    new ResizeObserver(() => this.resize()).observe(this.place);
  }

  size() {
    return { width: this.place.clientWidth, height: this.place.clientHeight };
  }

  resize() {
    const { width, height } = this.size();
    if (this.plot && (this.plot.width !== width || this.plot.height !== height)) {
      this.plot.setSize({ width, height });
    }
  }

  show(curves) {
    this.curves = curves;
    this.x = this.shared.x;
    this.smooth();
    this.draw();
    this.fillTable();
  }

  smooth() {
    for (const curve of this.curves) curve.line = smoothed(curve.ys, this.shared.smooth);
  }

  /** The curves that are drawn, with the line that is drawn as `ys`. */
  visible() {
    return this.curves
      .filter((curve) => !this.shared.hidden.has(curve.id))
      .map((curve) => ({ ...curve, ys: curve.line }));
  }

  /** Draw again after a change of what the plots share; places on another axis are read first. */
  draw() {
    const stale = this.x !== this.shared.x;
    this.figure.classList.toggle("stale", stale);
    if (stale) return;
    const { first, last, log, band } = this.shared;
    this.drawn = this.visible();
    const whole = span(this.drawn) ?? [0, 1];
    this.xRange = [first ?? whole[0], last ?? whole[1]];
    const found = extent(this.drawn, ...this.xRange, { band, log });
    this.yRange = found ? roomy(found, log) : log ? [0.1, 1] : [0, 1];
    if (this.plot && this.madeFor === this.kind()) this.plot.setData(this.data());
    else this.make();
    this.message(found);
  }

  message(found) {
    this.note?.remove();
    if (found) return;
    this.note = document.createElement("p");
    this.note.className = "dim over";
    this.note.textContent = this.curves.length
      ? this.shared.log ? "No value above 0 is here: a log scale shows none." : "Nothing is drawn here."
      : "These runs have no values here.";
    this.place.append(this.note);
  }

  data() {
    return [this.xRange, this.yRange];
  }

  /** What the axes depend on; a plot for other axes is made again. */
  kind() {
    return `${this.shared.log} ${this.shared.x} ${colour("--dim")}`;
  }

  make() {
    this.plot?.destroy();
    const { log, x, xText } = this.shared;
    this.madeFor = this.kind();
    const axis = {
      stroke: colour("--dim"), font: "12px system-ui, sans-serif",
      grid: { stroke: colour("--grid"), width: 1 }, ticks: { stroke: colour("--grid"), width: 1 },
    };
    this.plot = new window.uPlot({
      ...this.size(),
      padding: [8, 32, 0, 0],
      legend: { show: false },
      cursor: {
        points: { show: false },
        drag: { x: true, y: false, setScale: false, dist: 4 },
        sync: { key: SYNC, scales: ["x", null], filters: { pub: (type) => !/^mouse(down|up)$|dblclick/.test(type), sub: () => true } },
        bind: { dblclick: () => () => this.shared.whole() },
      },
      scales: {
        x: { time: false, range: () => this.xRange },
        y: { distr: log ? 3 : 1, range: () => this.yRange },
      },
      axes: [
        {
          ...axis, space: 84, size: 32, label: x, labelSize: 16, labelGap: 0, labelFont: axis.font,
          values: (_, found) => found.map((value) => xText(value)),
          ...this.shared.axis === "time" ? { incrs: SECONDS } : {},
        },
        { ...axis, size: 68, ...log ? { splits: (_, __, low, high) => logTicks(low, high), filter: (_, found) => found } : {}, values: (_, found) => found.map((value) => value === null ? "" : number(value)) },
      ],
      series: [{}, { paths: () => null, points: { show: false } }],
      hooks: {
        draw: [(plot) => this.paint(plot)],
        setCursor: [(plot) => this.readOut(plot)],
        setSelect: [(plot) => this.selected(plot)],
      },
    }, this.data(), this.place);
    this.plot.over.append(this.read);
    this.plot.over.addEventListener("mouseleave", () => this.shared.point(null));
  }

  selected(plot) {
    const { left, width } = plot.select;
    if (width < 4) return;
    const [first, last] = [left, left + width].map((at) => plot.posToVal(at, "x"));
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.shared.zoom(first, last);
  }

  paint(plot) {
    const { ctx, bbox } = plot;
    const { lit, band, palette, places } = this.shared;
    const [first, last] = this.xRange;
    const toX = (x) => bbox.left + (x - first) / (last - first) * bbox.width;
    const scale = this.shared.log ? Math.log : (value) => value;
    const [low, high] = this.yRange.map(scale);
    const toY = (y) => bbox.top + (high - scale(y)) / (high - low) * bbox.height;
    const pixel = devicePixelRatio;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.lineJoin = "round";
    const ordered = lit ? [...this.drawn].sort((a, b) => (a.id === lit) - (b.id === lit)) : this.drawn;
    for (const curve of ordered) {
      const place = places.get(curve.id) ?? 0;
      const faint = lit && lit !== curve.id;
      ctx.strokeStyle = ctx.fillStyle = palette[place];
      if (band) {
        ctx.globalAlpha = faint ? 0.04 : 0.15;
        fillBand(ctx, curve, toX, toY, this.shared.log);
      }
      ctx.globalAlpha = faint ? 0.2 : 1;
      ctx.lineWidth = (lit === curve.id ? 3 : 1.5) * pixel;
      ctx.setLineDash(dashes(place).map((part) => part * pixel));
      strokeLine(ctx, curve, toX, toY, this.shared.log, pixel);
    }
    ctx.restore();
    if (this.drawn.length) performance.mark(`overlay ${this.name}`);
  }

  /** Values at the crosshair: those nearest to it, or in other plots the first ones. */
  readOut(plot) {
    const { left, top } = plot.cursor;
    this.read.hidden = left < 0 || !this.drawn.length;
    if (this.read.hidden) return;
    const x = plot.posToVal(left, "x");
    const found = this.drawn.flatMap((curve) => {
      const at = nearest(curve.xs, x);
      const inside = at >= 0 && x >= curve.xs[0] && x <= curve.xs[curve.xs.length - 1];
      return inside && Number.isFinite(curve.ys[at]) ? [{ curve, at, y: curve.ys[at] }] : [];
    });
    const own = plot.over.matches(":hover");
    const gap = ({ y }) => Math.abs(plot.valToPos(y, "y") - top);
    if (own) {
      found.sort((a, b) => gap(a) - gap(b));
      this.shared.point(found.length && gap(found[0]) < 24 ? found[0].curve.id : null);
    }
    const shown = found.slice(0, READ_OUT).sort((a, b) => b.y - a.y);
    const head = document.createElement("b");
    head.textContent = `${this.shared.x} ${this.shared.xText(x)}`;
    this.read.replaceChildren(head, ...shown.map((item) => this.entry(item)));
    if (found.length > READ_OUT) {
      const more = document.createElement("span");
      more.className = "dim";
      more.textContent = `and ${found.length - READ_OUT} more`;
      this.read.append(more);
    }
    const room = plot.over.clientWidth - this.read.offsetWidth;
    const at = left + 12 <= room ? left + 12 : Math.max(Math.min(0, room), left - 12 - this.read.offsetWidth);
    this.read.style.transform = `translate(${at}px, 4px)`;
  }

  entry({ curve, at, y }) {
    const place = this.shared.places.get(curve.id) ?? 0;
    const line = document.createElement("span");
    line.className = "entry";
    const mark = document.createElement("i");
    mark.style.background = this.shared.palette[place];
    const name = document.createElement("span");
    name.textContent = this.shared.runs[place]?.name ?? curve.id;
    if (curve.id === this.shared.lit) name.className = "lit";
    const value = document.createElement("span");
    const { lows, highs } = curve;
    value.textContent = number(y) + (this.shared.band && lows[at] !== highs[at]
      ? ` (${number(lows[at])} to ${number(highs[at])})` : "");
    line.append(mark, name, value);
    return line;
  }

  /** All points that were read, as rows. */
  rows() {
    const smooth = this.shared.smooth > 0;
    const head = ["run_id", "run", "metric", "step", `x (${this.x})`, "value", "low", "high"];
    const rows = [smooth ? [...head, "smoothed"] : head];
    for (const curve of this.curves) {
      const name = this.shared.runs[this.shared.places.get(curve.id)]?.name;
      curve.xs.forEach((x, at) => rows.push([
        curve.id, name, this.name, curve.steps[at], x, curve.ys[at], curve.lows[at],
        curve.highs[at], ...(smooth ? [curve.line[at]] : []),
      ]));
    }
    return rows;
  }

  fillTable() {
    const details = this.figure.querySelector("details");
    if (!details.open) return;
    const every = (count) => Math.max(1, Math.ceil(count / TABLE_ROWS));
    const rows = this.visible().flatMap((curve) => {
      const name = this.shared.runs[this.shared.places.get(curve.id)]?.name ?? curve.id;
      return curve.xs.flatMap((x, at) =>
        at % every(curve.xs.length) && at !== curve.xs.length - 1 ? [] : [[
          name, this.shared.xText(x), ...[curve.ys[at], curve.lows[at], curve.highs[at]].map((y) => number(y)),
        ]]);
    });
    details.querySelector("table").replaceChildren(
      tableRow("th", ["run", this.shared.x, "value", "lowest", "highest"]),
      ...rows.map((cells) => tableRow("td", cells)),
    );
  }

  png() {
    savePng(this.name, this.plot.ctx.canvas, {
      title: `${this.name} by ${this.x}`, ground: colour("--surface"), text: colour("--text"),
      lines: this.drawn.map((curve) => {
        const place = this.shared.places.get(curve.id);
        return { name: this.shared.runs[place].name, colour: this.shared.palette[place], dashes: dashes(place) };
      }),
    });
  }
}

/** uPlot, which the page loads beside this module or, later, this function. */
export const ready = () => window.uPlot ? Promise.resolve() : vendor("uPlot.iife.min.js");

const good = (value, log) => Number.isFinite(value) && !(log && value <= 0);

function strokeLine(ctx, { xs, ys }, toX, toY, log, pixel) {
  let open = false, points = 0, x = 0, y = 0;
  ctx.beginPath();
  for (let at = 0; at < xs.length; at += 1) {
    if (!good(ys[at], log)) {
      open = false;
      continue;
    }
    x = toX(xs[at]);
    y = toY(ys[at]);
    if (open) ctx.lineTo(x, y);
    else ctx.moveTo(x, y);
    open = true;
    points += 1;
  }
  ctx.stroke();
  if (points !== 1) return;
  ctx.beginPath();
  ctx.arc(x, y, 3 * pixel, 0, 2 * Math.PI);
  ctx.fill();
}

function fillBand(ctx, { xs, lows, highs }, toX, toY, log) {
  const inside = xs.map((_, at) => at).filter((at) => good(lows[at], log) && good(highs[at], log));
  if (inside.length < 2) return;
  ctx.beginPath();
  for (const at of inside) ctx.lineTo(toX(xs[at]), toY(highs[at]));
  for (const at of inside.reverse()) ctx.lineTo(toX(xs[at]), toY(lows[at]));
  ctx.closePath();
  ctx.fill();
}
