// The map of GPUs: one SVG a rack, one row a node, one square a GPU. Squares of one gang on a rack
// are one path, so 10,000 GPUs are some thousand elements.
import { tableRow } from "./charts.js";
import { number } from "./format.js";
import { atMost } from "./live.js";

const SVG = "http://www.w3.org/2000/svg";
const GAP = 2;
const OFF = new Set(["draining", "cordoned", "leaving"]);
const MOST_IN_LEGEND = 14;

/** good, warn, off or bad: how a node stands. `kind` of pages/nodes says the same. */
function health(node) {
  if (node.status === "ready") return node.straggler ? "warn" : "good";
  return OFF.has(node.status) ? "off" : node.status === "suspected" ? "warn" : "bad";
}

/** What to call its standing. */
export const standing = (node) => node.straggler && node.status === "ready" ? "straggling" : node.status;

/** The series colour of a name: always the same one. */
function series(name) {
  let hash = 2166136261;
  for (let at = 0; at < name.length; at += 1) hash = Math.imul(hash ^ name.charCodeAt(at), 16777619);
  return ((hash >>> 8) % 8) + 1;
}

const BY = {
  job: (node, gang) => gang ? (gang.job_id ?? "other teams") : "idle",
  team: (node, gang) => gang ? (gang.team ?? "other teams") : "idle",
  health: (node) => standing(node),
  utilization: (node, gang, at) => {
    const used = node.utilization?.[at];
    if (used === null || used === undefined) return "not reported";
    return used < 20 ? "0-19 %" : used < 40 ? "20-39 %" : used < 60 ? "40-59 %" : used < 80 ? "60-79 %" : "80-100 %";
  },
};
const USED = { "0-19 %": 0, "20-39 %": 1, "40-59 %": 2, "60-79 %": 3, "80-100 %": 4 };

function kind(by, name, node) {
  if (name === "idle" || name === "not reported") return "idle";
  if (name === "other teams") return "others";
  if (by === "health") return `h-${health(node)}`;
  if (by === "utilization") return `u-${USED[name]}`;
  return `s-${series(name)}`;
}

/** The gang of each GPU of a node, by the GPU's place. */
function gangs(node) {
  const found = new Map();
  for (const gang of node.gangs) for (const index of gang.gpus) found.set(index, gang);
  return node.gpus.map((index) => found.get(index) ?? null);
}

const made = (name, attributes, ...children) => {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
};

/** Side of a square in pixels: small clusters are drawn larger. */
const sideOf = (gpus) => gpus <= 64 ? 26 : gpus <= 600 ? 16 : gpus <= 3000 ? 12 : 9;

/**
 * A map in `place`. `show(nodes)` draws all, `change(node)` one node that changed; both take nodes
 * as /v1/gpus gives them. `by`: job, team, utilization or health. `onPick(node)`: one was chosen.
 */
export class GpuMap {
  constructor(place, legend, { by = "job", onPick = () => {} } = {}) {
    Object.assign(this, { place, legend, by, onPick, lit: null });
    this.nodes = new Map();
    this.racks = new Map();
    this.legendSoon = atMost(500, () => this.drawLegend());
    for (const [on, off] of [["pointerover", "pointerleave"], ["focusin", "focusout"]]) {
      legend.addEventListener(on, (event) => this.light(event.target.closest("[data-name]")?.dataset.name ?? null));
      legend.addEventListener(off, () => this.light(null));
    }
    this.tip = document.createElement("div");
    this.tip.className = "tip";
    this.tip.hidden = true;
    document.body.append(this.tip);
    place.addEventListener("pointermove", (event) => this.hover(event));
    place.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    place.addEventListener("click", (event) => {
      const found = this.at(event);
      if (found) this.onPick(found.node);
    });
  }

  show(nodes) {
    this.nodes = new Map(nodes.map((node) => [node.node_id, node]));
    this.side = sideOf(nodes.reduce((sum, node) => sum + node.gpus.length, 0));
    this.draw();
  }

  change(node) {
    const before = this.nodes.get(node.node_id);
    this.nodes.set(node.node_id, node);
    const rack = this.racks.get(key(node));
    if (!before || key(before) !== key(node) || !rack) return this.draw();
    rack.nodes[rack.nodes.findIndex((item) => item.node_id === node.node_id)] = node;
    this.drawRack(rack);
    this.legendSoon(); // a gang's start changes many nodes at once
  }

  /** Show the GPUs of one entry of the legend, and the others faint; null: all. */
  light(name) {
    if (this.lit === name) return;
    this.lit = name;
    for (const rack of this.racks.values()) this.drawRack(rack);
  }

  colour(by) {
    this.by = by;
    this.lit = null;
    for (const rack of this.racks.values()) this.drawRack(rack);
    this.drawLegend();
  }

  draw() {
    this.racks.clear();
    for (const node of this.nodes.values()) {
      const rack = this.racks.get(key(node)) ?? { block: node.block, name: node.rack, nodes: [] };
      this.racks.set(key(node), rack);
      rack.nodes.push(node);
    }
    const parts = [];
    for (const rack of this.racks.values()) {
      rack.svg = made("svg", { class: "rack-map", "aria-hidden": "true" });
      const title = document.createElement("h3");
      title.textContent = rack.name || "no rack";
      title.title = `${rack.block ? `block ${rack.block}, ` : ""}rack ${rack.name || "not named"}: ${rack.nodes.length} nodes`;
      const section = document.createElement("section");
      section.className = "rack";
      section.append(title, rack.svg);
      parts.push(section);
      this.drawRack(rack);
    }
    this.place.replaceChildren(...parts);
    this.place.removeAttribute("aria-busy");
    this.drawLegend();
  }

  drawRack(rack) {
    const step = this.side + GAP, paths = new Map();
    const most = Math.max(...rack.nodes.map((node) => node.gpus.length), 1);
    const marks = [];
    const inner = this.side - 1;
    rack.nodes.forEach((node, row) => {
      const y = row * (step + GAP);
      gangs(node).forEach((gang, at) => {
        const name = BY[this.by](node, gang, at);
        const faint = this.lit !== null && this.lit !== name;
        const style = kind(this.by, name, node) + (faint ? " faint" : "");
        paths.set(style, `${paths.get(style) ?? ""}M${at * step + 0.5} ${y + 0.5}h${inner}v${inner}h${-inner}z`);
      });
      const state = health(node);
      if (state !== "good") {
        const end = Math.max(node.gpus.length, 1) * step - GAP;
        marks.push(state === "off" ? `M0 ${y + this.side / 2}H${end}` : `M0 ${y + this.side}L${end} ${y}`);
      }
    });
    rack.svg.setAttribute("width", most * step);
    rack.svg.setAttribute("height", rack.nodes.length * (step + GAP));
    rack.svg.replaceChildren(
      ...[...paths].map(([style, path]) => made("path", { class: style, d: path })),
      ...(marks.length ? [made("path", { class: "mark", d: marks.join("") })] : []),
    );
  }

  drawLegend() {
    const counts = new Map();
    let marked = 0;
    for (const node of this.nodes.values()) {
      if (health(node) !== "good") marked += 1;
      gangs(node).forEach((gang, at) => {
        const name = BY[this.by](node, gang, at);
        const found = counts.get(name) ?? { style: kind(this.by, name, node), gpus: 0 };
        found.gpus += 1;
        counts.set(name, found);
      });
    }
    const sorted = [...counts].sort((one, other) => other[1].gpus - one[1].gpus);
    const items = sorted.slice(0, MOST_IN_LEGEND).map(([name, { style, gpus }]) => {
      const box = made("svg", { width: 12, height: 12, "aria-hidden": "true" },
        made("path", { class: style, d: "M.5 .5h11v11h-11z" }));
      const isJob = this.by === "job" && !["idle", "other teams"].includes(name);
      const text = document.createElement(isJob ? "a" : "button");
      if (isJob) text.href = `/console/jobs/${encodeURIComponent(name)}`;
      else text.type = "button";
      text.textContent = name;
      text.title = "Its GPUs alone, while it is pointed at or has the focus";
      const item = wrapped(box, text, ` ${gpus.toLocaleString("en-US")}`);
      item.dataset.name = name;
      return item;
    });
    if (sorted.length > MOST_IN_LEGEND) {
      items.push(wrapped(`and ${sorted.length - MOST_IN_LEGEND} more`));
    }
    if (marked) {
      const box = made("svg", { width: 12, height: 12, "aria-hidden": "true" },
        made("path", { class: "mark", d: "M0 12L12 0" }));
      items.push(wrapped(box, ` ${marked === 1 ? "1 node takes no gangs, or slows one" : `${marked} nodes take no gangs, or slow one`}`));
    }
    const focus = this.legend.contains(document.activeElement) && document.activeElement.textContent;
    this.legend.replaceChildren(...items);
    if (focus) [...this.legend.querySelectorAll("a, button")].find((item) => item.textContent === focus)?.focus();
  }

  at(event) {
    const svg = event.target.closest?.("svg.rack-map");
    const rack = svg && [...this.racks.values()].find((item) => item.svg === svg);
    if (!rack) return null;
    const box = svg.getBoundingClientRect(), step = this.side + GAP;
    const node = rack.nodes[Math.floor((event.clientY - box.top) / (step + GAP))];
    if (!node) return null;
    const at = Math.floor((event.clientX - box.left) / step);
    return { node, at, gang: gangs(node)[at] ?? null };
  }

  hover(event) {
    const found = this.at(event);
    this.tip.hidden = !found;
    if (!found) return;
    const { node, at, gang } = found;
    const lines = [`${node.node_id}: ${standing(node)}`];
    if (node.why || node.straggler) lines.push(node.why || node.straggler);
    if (at < node.gpus.length) {
      const used = node.utilization?.[at];
      lines.push(`GPU ${node.gpus[at]} (${node.model})${used === null || used === undefined ? "" : `, ${used} % busy`}`);
      if (!gang) lines.push("idle");
      else if (gang.job_id === null) lines.push("a job of another team");
      else {
        const rank = gang.first_rank === null ? "" : `, rank ${gang.first_rank + gang.gpus.indexOf(node.gpus[at])}`;
        lines.push(`${gang.job_id} (${gang.team}${rank})`);
      }
    }
    this.tip.textContent = lines.join("\n");
    this.tip.style.left = `${Math.min(event.clientX + 12, innerWidth - this.tip.offsetWidth - 8)}px`;
    this.tip.style.top = `${Math.min(event.clientY + 12, innerHeight - this.tip.offsetHeight - 8)}px`;
  }
}

/** The same as a map, for those who read tables: one row a node, in a `details` that is open. */
export function mapTable(details, nodes) {
  if (!details.open) return;
  const rows = [tableRow("th", ["Node", "Rack", "Standing", "GPUs", "In use", "Jobs"])];
  for (const node of nodes) {
    const row = tableRow("td", [
      "", node.rack, standing(node), number(node.gpus.length),
      number(node.gangs.reduce((sum, gang) => sum + gang.gpus.length, 0)),
      node.gangs.map((gang) => gang.job_id ?? "another team's").join(", "),
    ]);
    const link = document.createElement("a");
    link.href = `/console/nodes/${encodeURIComponent(node.node_id)}`;
    link.textContent = node.node_id;
    row.cells[0].append(link);
    rows.push(row);
  }
  details.querySelector("table").replaceChildren(...rows);
}

const key = (node) => `${node.block}\0${node.rack}`;

function wrapped(...parts) {
  const item = document.createElement("span");
  item.className = "key";
  item.append(...parts);
  return item;
}
