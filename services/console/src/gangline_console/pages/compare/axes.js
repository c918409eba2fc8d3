// Parallel coordinates with brushing: the ranges are in the address, the table shows who is in them.
import { colour, dashes } from "../../charts.js";
import { axisStyle, chartIn, fillPlaces, isLog, places, text, tooltip } from "./space.js";
import { fillRanges } from "./ranges.js";
import { write } from "./view.js";

const PART = "~", NARROW_PX = 640, ROW_PX = 48, NAME_PX = 88;

export async function start(shared) {
  const figure = document.getElementById("axes");
  const kept = document.getElementById("status");
  const found = await places(shared);
  const chart = await chartIn(figure, "parallel-axes");
  let ids = new Set(), setting = false;

  const shown = () => found.runs.filter((run) => !shared.hidden.has(run.run_id));

  function axis(item, at) {
    const style = axisStyle();
    const wide = figure.clientWidth / found.axes.length;
    const name = narrow()
      ? { nameLocation: "start", nameGap: 8, nameTextStyle: { ...style.nameTextStyle, width: NAME_PX, overflow: "truncate" } }
      : { nameLocation: "end", nameGap: 14, nameTextStyle: { ...style.nameTextStyle, width: Math.max(48, wide - 12), overflow: "truncate" } };
    return {
      dim: at, z: 20, name: item.title, ...style, splitLine: undefined, ...name,
      areaSelectStyle: { width: 16, borderColor: colour("--accent"), color: colour("--accent"), opacity: 0.25 },
      ...item.texts.length ? { type: "category", data: item.texts }
        : isLog(item) ? { type: "log", min: item.low, max: item.high }
        : item.low === item.high ? { type: "value", min: item.low - 1, max: item.high + 1 }
        : { type: "value", min: item.low, max: item.high },
    };
  }

  /** On a narrow screen the axes lie below each other. */
  const narrow = () => figure.clientWidth < NARROW_PX;

  function redraw() {
    figure.querySelector(".plot").style.height = narrow() ? `${found.axes.length * ROW_PX + 48}px` : "";
    chart.resize();
    const colours = shared.palette;
    chart.setOption({
      animation: false, tooltip: { ...tooltip(), trigger: "item" },
      parallel: narrow()
        ? { layout: "vertical", left: NAME_PX + 16, right: 24, top: 16, bottom: 32, axisExpandable: false }
        : { layout: "horizontal", left: 32, right: 80, top: 40, bottom: 24, axisExpandable: false },
      parallelAxis: found.axes.map(axis),
      series: [{
        type: "parallel", smooth: 0.1, inactiveOpacity: 0.06, activeOpacity: 0.9, emphasis: { lineStyle: { width: 4 } },
        tooltip: { formatter: ({ dataIndex }) => label(shown()[dataIndex]) },
        data: shown().map((run) => ({
          name: run.name,
          value: run.values.map((value) => value ?? "-"),
          lineStyle: {
            color: colours[shared.places.get(run.run_id)], type: line(run), opacity: shared.lit && shared.lit !== run.run_id ? 0.15 : 0.9,
            width: shared.lit === run.run_id ? 4 : 2,
          },
        })),
      }],
    }, { notMerge: true });
    brush();
  }

  /** Trials are shaded by their value; runs differ in their dashes, too. */
  function line(run) {
    const parts = shared.source ? [] : dashes(shared.places.get(run.run_id));
    return parts.length ? parts : "solid";
  }

  const label = (run) => [
    run.name || run.run_id,
    ...found.axes.slice(0, 14).map((item, at) => `${item.title}: ${text(run.values[at])}`),
  ].join("\n");

  /** Ranges of the address: `NAME~low~high` with commas between them. */
  function brush() {
    setting = true;
    for (const part of shared.brush.split(",").filter(Boolean)) {
      const [key, low, high] = part.split(PART).map(decodeURIComponent);
      const at = found.axes.findIndex((item) => item.key === key);
      if (at < 0) continue;
      chart.dispatchAction({
        type: "axisAreaSelect", parallelAxisIndex: at, intervals: [[Number(low), Number(high)]],
      });
    }
    setting = false;
    table();
  }

  const ranges = () => chart.getModel().findComponents({ mainType: "parallelAxis" });

  function table() {
    const runs = shown();
    const series = chart.getModel().getSeriesByIndex(0);
    const active = new Set(ranges().some((item) => item.activeIntervals.length)
      ? series.getRawIndicesByActiveState("active") : runs.keys());
    ids = new Set(runs.filter((_, at) => active.has(at)).map((run) => run.run_id));
    const what = shared.source ? "trials" : "runs";
    kept.textContent = `${ids.size === runs.length ? "All" : `${ids.size} of`} ${runs.length} ${what} are kept.`;
    fillPlaces(shared, found, found.axes, ids);
  }

  chart.on("axisareaselected", () => {
    if (setting) return;
    shared.brush = ranges().flatMap((item, at) => item.activeIntervals.map((ends) =>
      [found.axes[at].key, ...ends.map((end) => Number(end.toPrecision(6)))].map(encodeURIComponent).join(PART),
    )).join(",");
    write({ brush: shared.brush });
    table();
  });
  /** Keep this range of one axis; the others stay. Without ends the axis has no range. */
  function keep(key, ends) {
    const others = shared.brush.split(",").filter((part) => part && decodeURIComponent(part.split(PART)[0]) !== key);
    const own = ends ? [[key, ...ends].map(encodeURIComponent).join(PART)] : [];
    shared.brush = [...others, ...own].join(",");
    write({ brush: shared.brush });
    redraw();
  }

  fillRanges(document.getElementById("ranges"), found.axes, keep);
  redraw();
  return { redraw, changed: redraw };
}
