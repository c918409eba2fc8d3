// The curves of trials with the rungs, and the best value over GPU-hours.
import { colour, tableRow } from "../../charts.js";
import { number } from "../../format.js";
import { get } from "../../live.js";
import { axisStyle, echarts, tooltip } from "../compare/space.js";

/** Colour, width and dashes of a curve by its trial's state. */
const LOOKS = {
  running: ["--series-1", 2, [12, 3, 2, 3]], waiting: ["--series-1", 1, [2, 4]],
  paused: ["--series-2", 1.5, [8, 3]], completed: ["--series-3", 2, []],
  pruned: ["--idle", 1, [2, 2]], failed: ["--series-6", 1, [6, 3, 1, 3]],
};
const WORDS = Object.keys(LOOKS);

export async function start(study) {
  const path = `/v1/studies/${encodeURIComponent(study)}`;
  const library = await echarts();
  const curves = chart("curves"), best = chart("best-so-far");
  let found = null, course = null;

  function chart(id) {
    const figure = document.getElementById(id);
    const place = figure.querySelector(".plot");
    const made = library.init(place, null, { renderer: "canvas" });
    new ResizeObserver(() => made.resize()).observe(place);
    figure.querySelector("details").addEventListener("toggle", tables);
    return { figure, made };
  }

  const axis = (name, more = {}) => ({
    type: "value", scale: true, name, nameLocation: "middle", nameGap: 26, ...axisStyle(), ...more,
  });

  function drawCurves() {
    const chosen = bestTrial();
    curves.made.setOption({
      animation: false, tooltip: { ...tooltip(), trigger: "item", formatter: ({ seriesName, value }) => `${seriesName}\nstep ${number(value[0])}: ${number(value[1])}` },
      grid: { left: 64, right: chosen === undefined ? 16 : 112, top: 16, bottom: 44 },
      xAxis: axis("step", { min: 0 }), yAxis: axis(""),
      series: found.curves.map((one, at) => series(one, one.number === chosen, at === 0)),
    }, { notMerge: true });
    const rungs = found.rungs.length ? `rungs at ${found.rungs.map((step) => number(step)).join(", ")}` : "";
    document.getElementById("rungs").textContent = rungs;
    const states = new Set(found.curves.map((one) => one.state));
    const left = found.left_out ? ` · ${number(found.left_out)} more trials are left out` : "";
    const hint = document.getElementById("curves-note");
    hint.replaceChildren(...WORDS.filter((word) => states.has(word)).flatMap(swatch), left);
    if (!found.curves.length) hint.textContent = "No trial has reported the objective yet.";
  }

  function series(one, isBest, first) {
    const [name, width, dashes] = LOOKS[one.state] ?? LOOKS.pruned;
    return {
      type: "line", name: `trial ${one.number} (${one.state})`, symbolSize: 5,
      showSymbol: one.steps.length < 2, z: isBest ? 5 : 2,
      data: one.steps.map((step, at) => [step, one.values[at]]),
      lineStyle: { color: colour(name), width: isBest ? 4 : width, type: dashes.length ? dashes : "solid" },
      itemStyle: { color: colour(name) },
      endLabel: { show: isBest, formatter: `★ trial ${one.number}`, color: colour("--text") },
      markLine: first && found.rungs.length ? {
        silent: true, symbol: "none", label: { show: false },
        lineStyle: { color: colour("--dim"), type: "dotted" },
        data: found.rungs.map((step) => ({ xAxis: step })),
      } : undefined,
    };
  }

  const bestTrial = () => course?.points.at(-1)?.number;

  function swatch(word) {
    const mark = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    mark.setAttribute("width", "20");
    mark.setAttribute("height", "10");
    mark.setAttribute("aria-hidden", "true");
    const line = document.createElementNS(mark.namespaceURI, "line");
    for (const [name, value] of Object.entries({ x1: 0, y1: 5, x2: 18, y2: 5, "stroke-width": LOOKS[word][1] + 1, stroke: colour(LOOKS[word][0]) })) line.setAttribute(name, value);
    line.setAttribute("stroke-dasharray", LOOKS[word][2].join(" "));
    mark.append(line);
    const text = document.createElement("span");
    text.textContent = ` ${word}  `;
    return [mark, text];
  }

  function drawBest() {
    const points = course.points.map((point) => [point.gpu_hours, point.value]);
    if (points.length) points.push([Math.max(course.gpu_hours, points.at(-1)[0]), points.at(-1)[1]]);
    best.figure.hidden = !points.length;
    document.getElementById("no-best").hidden = points.length > 0;
    best.made.resize();
    best.made.setOption({
      animation: false, tooltip: { ...tooltip(), trigger: "item", formatter: ({ dataIndex, value }) => [
        course.points[dataIndex] ? `trial ${course.points[dataIndex].number}` : "now",
        `${number(value[1])} after ${number(value[0], 3)} GPU-hours`].join("\n") },
      grid: { left: 64, right: 16, top: 12, bottom: 40 },
      xAxis: axis("GPU-hours", { min: 0 }), yAxis: axis(""),
      series: [{ type: "line", step: "end", data: points, symbolSize: 6, lineStyle: { color: colour("--series-1"), width: 2 }, itemStyle: { color: colour("--series-1") } }],
    }, { notMerge: true });
  }

  function tables() {
    fill(curves.figure, ["trial", "state", "step", found.metric], found.curves.flatMap((one) =>
      one.steps.map((step, at) => [one.number, one.state, number(step), number(one.values[at])])));
    fill(best.figure, ["GPU-hours", "trial", course.metric], course.points.map((point) =>
      [number(point.gpu_hours, 3), point.number, number(point.value)]));
  }

  function fill(figure, head, rows) {
    if (!figure.querySelector("details").open) return;
    figure.querySelector("table").replaceChildren(
      tableRow("th", head), ...rows.map((cells) => tableRow("td", cells)));
  }

  function redraw() {
    drawCurves();
    drawBest();
    tables();
  }

  async function read() {
    const asked = [get(`${path}/curves`), get(`${path}/best-so-far`)];
    try {
      [found, course] = await Promise.all(asked);
    } catch (error) {
      document.getElementById("curves-note").textContent = `The curves could not be read: ${error.message}.`;
      return;
    }
    redraw();
  }

  await read();
  return { read, redraw: () => found && redraw() };
}
