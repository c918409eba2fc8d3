// What parallel axes and the scatter plot share: ECharts, the runs' places, their table, files.
import { colour, tableRow, vendor } from "../../charts.js";
import { rowsOf, saveCsv, savePng } from "../../export.js";
import { NONE, number } from "../../format.js";
import { get } from "../../live.js";

let loading = null;

/** ECharts, which only these two parts need. */
export const echarts = () =>
  loading ??= vendor("echarts.min.js").then(() => window.echarts);

/**
 * The runs on all axes: REST's `parallel`; each axis has its `title` and `texts` or a range.
 * `shared.source` is another address of such an answer, and `shared.took` hears of it.
 */
export async function places(shared) {
  const query = new URLSearchParams();
  for (const run of shared.runs) query.append("run", run.id);
  const found = await get(shared.source ?? `/v1/runs/parallel?${query}`);
  shared.took?.(found);
  const words = { gpu_hours: "GPU-hours", cost: "cost" };
  for (const axis of found.axes) {
    const alone = found.axes.filter((other) => other.name === axis.name).length === 1;
    axis.title = words[axis.name] ?? (alone ? axis.name : `${axis.name} (${axis.kind})`);
    axis.key = `${axis.kind}.${axis.name}`;
  }
  return found;
}

/** A chart of ECharts in a figure, with its buttons and its size. */
export async function chartIn(figure, name) {
  const library = await echarts();
  const place = figure.querySelector(".plot");
  const chart = library.init(place, null, { renderer: "canvas" });
  new ResizeObserver(() => chart.resize()).observe(place);
  figure.addEventListener("click", (event) => {
    const kind = event.target.closest("[data-save]")?.dataset.save;
    if (kind === "csv") saveCsv(name, rowsOf(document.getElementById("places")));
    if (kind === "png") {
      const canvas = chart.getRenderedCanvas({ pixelRatio: 2, backgroundColor: colour("--surface") });
      savePng(name, canvas, {
        title: figure.querySelector("figcaption span").textContent, scale: 2,
        ground: colour("--surface"), text: colour("--text"),
      });
    }
  });
  return chart;
}

/** The table of the runs' places; `kept` holds the ids of the rows to show. */
export function fillPlaces(shared, found, axes, kept) {
  const table = document.getElementById("places");
  const at = axes.map((axis) => found.axes.indexOf(axis));
  const head = document.createElement("thead");
  head.append(tableRow("th", ["run", "id", "state", ...axes.map((axis) => axis.title)]));
  axes.forEach((axis, column) => {
    if (!axis.texts.length) head.rows[0].cells[column + 3].className = "n";
  });
  const body = document.createElement("tbody");
  for (const run of found.runs) {
    if (!kept.has(run.run_id)) continue;
    const values = at.map((column) => run.values[column]);
    const row = tableRow("td", [
      run.name || run.run_id, run.run_id, run.state,
      ...values.map(text),
    ]);
    values.forEach((value, column) => {
      const cell = row.cells[column + 3];
      if (typeof value === "number") {
        cell.className = "n";
        cell.dataset.full = value;
        cell.title = value;
      }
    });
    body.append(row);
  }
  table.replaceChildren(head, body);
}

export const text = (value) => typeof value === "number" ? number(value) : value ?? NONE;
/** Positive values that lie far apart, such as learning rates, are told apart on a log axis. */
export const isLog = ({ low, high, texts }) => !texts.length && low > 0 && high / low >= 20;

export const axisStyle = () => ({
  nameTextStyle: { color: colour("--text"), fontSize: 12 },
  axisLine: { lineStyle: { color: colour("--dim") } },
  axisTick: { lineStyle: { color: colour("--dim") } },
  axisLabel: {
    color: colour("--dim"), fontSize: 11, textBorderColor: colour("--surface"), textBorderWidth: 3,
    hideOverlap: true,
    formatter: (value) => text(typeof value === "string" ? value : Number(value)),
  },
  splitLine: { lineStyle: { color: colour("--grid") } },
});
export const tooltip = () => ({
  renderMode: "richText", confine: true, backgroundColor: colour("--raised"),
  borderColor: colour("--line"), textStyle: { color: colour("--text"), fontSize: 12 },
});
