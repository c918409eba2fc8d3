// The search of every page: results by kind while one types; arrows choose, Enter opens.
// Without scripts its form leads to /console/search.
import { get, atMost } from "./live.js";

const KINDS = { job: "Jobs", run: "Runs", node: "Nodes", team: "Teams", doc: "Documentation" };
const input = document.getElementById("search-all");
const list = document.getElementById("found");
let asked = "", shown = "";

/** The page of a result, as pages/search makes it. */
function href(one) {
  const name = encodeURIComponent(one.id);
  if (one.kind === "job" || one.kind === "run") return `/console/jobs/${name}`;
  if (one.kind === "team") return `/console/jobs?team=${name}`;
  if (one.kind === "node") return `/console/nodes/${name}`;
  const [page, place] = one.id.split("#");
  return `/console/docs/${page.split("/").map(encodeURIComponent).join("/")}${place ? `#${place}` : ""}`;
}

const options = () => [...list.querySelectorAll("[role=option]")];
const chosen = () => list.querySelector("[aria-selected=true]");

function choose(option) {
  chosen()?.setAttribute("aria-selected", "false");
  option?.setAttribute("aria-selected", "true");
  option?.scrollIntoView({ block: "nearest" });
  if (option) input.setAttribute("aria-activedescendant", option.id);
  else input.removeAttribute("aria-activedescendant");
}

function open(yes) {
  list.hidden = !yes;
  input.setAttribute("aria-expanded", String(yes));
  if (!yes) choose(null);
}

function element(name, text, className = "") {
  const made = document.createElement(name);
  made.textContent = text;
  made.className = className;
  return made;
}

function show(results, text) {
  const groups = Map.groupBy ? Map.groupBy(results.found, (one) => one.kind) : new Map();
  if (!Map.groupBy) {
    for (const one of results.found) groups.set(one.kind, [...(groups.get(one.kind) ?? []), one]);
  }
  let number = 0;
  const parts = [...groups].map(([kind, found]) => {
    const group = document.createElement("div");
    group.setAttribute("role", "group");
    group.setAttribute("aria-label", KINDS[kind] ?? kind);
    group.append(element("span", KINDS[kind] ?? kind, "kind"));
    for (const one of found.slice(0, 6)) {
      const option = element("a", "", "option");
      option.id = `found-${number++}`;
      option.href = href(one);
      option.tabIndex = -1;
      option.setAttribute("role", "option");
      option.setAttribute("aria-selected", "false");
      const more = [one.id === one.title ? "" : one.id, one.detail, one.team].filter(Boolean);
      option.append(element("span", one.title, "title"), element("span", more.join(" · "), "dim"));
      group.append(option);
    }
    return group;
  });
  if (!parts.length) parts.push(element("p", "Nothing found.", "dim"));
  list.replaceChildren(...parts);
  shown = text;
  open(document.activeElement === input);
}

const search = atMost(150, async () => {
  const text = input.value.trim().slice(0, 100);
  if (!text) return open(false);
  if (text === asked) return shown === text && open(true);
  asked = text;
  try {
    const results = await get(`/v1/search?${new URLSearchParams({ q: text, limit: 6 })}`);
    if (text === input.value.trim().slice(0, 100)) show(results, text);
  } catch (error) {
    list.replaceChildren(element("p", String(error.message), "dim"));
    asked = "";
    open(document.activeElement === input);
  }
});

input.addEventListener("input", search);
input.addEventListener("focus", search);
input.addEventListener("blur", () => setTimeout(() => {
  if (!list.contains(document.activeElement)) open(false);
}, 150));
list.addEventListener("mousedown", (event) => event.preventDefault());
input.addEventListener("keydown", (event) => {
  const all = options();
  const at = all.indexOf(chosen());
  if (event.key === "Escape") return open(false);
  if (list.hidden || !all.length) return;
  if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    event.preventDefault();
    const by = event.key === "ArrowDown" ? 1 : -1;
    choose(all[(at + by + (at < 0 && by < 0 ? 1 : 0) + all.length) % all.length]);
  } else if (event.key === "Enter" && at >= 0) {
    event.preventDefault();
    location.assign(all[at].href);
  }
});
