// Runs as points over two axes, with a third one as their colour.
import { colour, seriesColour } from "../../charts.js";
import { axisStyle, chartIn, fillPlaces, isLog, places, text, tooltip } from "./space.js";
import { write } from "./view.js";

const NONE = "";

export async function start(shared) {
  const figure = document.getElementById("scatter");
  const controls = document.getElementById("controls");
  const found = await places(shared);
  const chart = await chartIn(figure, "scatter");
  const keys = found.axes.map((axis) => axis.key);

  function options() {
    for (const select of [controls.sx, controls.sy, controls.sc]) {
      select.replaceChildren();
      if (select === controls.sc) select.add(new Option("Run", NONE));
      for (const axis of found.axes) select.add(new Option(axis.title, axis.key));
    }
  }

  /** The axes of the address, or a parameter, a metric, and the next one. */
  function take() {
    const metrics = keys.filter((key) => key.startsWith("metric."));
    const others = keys.filter((key) => !key.startsWith("metric."));
    const loss = metrics.find((key) => key.includes("loss")) ?? metrics[0] ?? keys.at(-1);
    controls.sx.value = keys.includes(shared.sx) ? shared.sx : others[0] ?? loss;
    controls.sy.value = keys.includes(shared.sy) ? shared.sy : loss;
    controls.sc.value = keys.includes(shared.sc) ? shared.sc : NONE;
  }

  const axisOf = (key) => found.axes[keys.indexOf(key)];
  const valueOf = (run, key) => run.values[keys.indexOf(key)];

  function axis(item) {
    const common = { name: item.title, nameLocation: "middle", nameGap: 36, ...axisStyle() };
    return item.texts.length ? { ...common, type: "category", data: item.texts } : isLog(item) ? { ...common, type: "log" } : { ...common, type: "value", scale: true, boundaryGap: ["4%", "4%"] };
  }

  /** The scale of colours, with its numbers beside it; runs have their own colours without one. */
  function scale(item) {
    if (!item) return [];
    const common = { dimension: 2, right: 0, top: "middle", textStyle: { color: colour("--dim") } };
    if (item.texts.length) {
      const colours = item.texts.map((_, at) => seriesColour(at));
      return [{ ...common, type: "piecewise", categories: item.texts, inRange: { color: colours } }];
    }
    return [{
      ...common, type: "continuous", min: item.low, max: item.high, calculable: true, precision: 4,
      text: [item.title, ""], formatter: (value) => text(value),
      inRange: { color: [colour("--series-5"), colour("--series-8"), colour("--series-6")] },
    }];
  }

  function redraw() {
    const [x, y] = [axisOf(controls.sx.value), axisOf(controls.sy.value)];
    if (!x || !y) return;
    const third = axisOf(controls.sc.value);
    const runs = found.runs.filter((run) => !shared.hidden.has(run.run_id));
    figure.querySelector(".title").textContent =
      `${y.title} over ${x.title}${third ? `, coloured by ${third.title}` : ""}`;
    chart.setOption({
      animation: false,
      tooltip: { ...tooltip(), formatter: ({ dataIndex }) => [
        runs[dataIndex].name || runs[dataIndex].run_id,
        ...new Set([x, y, third].filter(Boolean).map((item) => `${item.title}: ${text(valueOf(runs[dataIndex], item.key))}`)),
      ].join("\n") },
      grid: { left: 72, right: third ? 168 : 24, top: 24, bottom: 56 },
      xAxis: axis(x), yAxis: { ...axis(y), nameGap: 52 }, visualMap: scale(third),
      series: [{
        type: "scatter", symbolSize: (_, { dataIndex }) => runs[dataIndex].run_id === shared.lit ? 20 : 12,
        data: runs.map((run) => ({
          value: [valueOf(run, x.key), valueOf(run, y.key), third ? valueOf(run, third.key) : 0],
          itemStyle: third ? {} : { color: shared.palette[shared.places.get(run.run_id)] },
        })),
      }],
    }, { notMerge: true });
    const axes = [...new Set([x, y, third].filter(Boolean))];
    fillPlaces(shared, found, axes, new Set(runs.map((run) => run.run_id)));
  }

  controls.addEventListener("change", () => {
    for (const name of ["sx", "sy", "sc"]) shared[name] = controls[name].value;
    write({ sx: shared.sx, sy: shared.sy, sc: shared.sc }, { step: true });
    redraw();
  });
  const changed = () => { take(); redraw(); };
  options();
  changed();
  return { redraw, changed };
}
