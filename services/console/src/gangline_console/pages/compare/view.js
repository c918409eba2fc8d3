// The view of the page is its address: reading it, changing it, and keeping links in step.

const LINKS = "nav.tabs a.keep";

/** Values of the address, with their defaults. */
export function read() {
  const query = new URLSearchParams(location.search);
  const figure = (name) => query.get(name) && Number(query.get(name)) >= 0 ? Number(query.get(name)) : null;
  const list = (name) => (query.get(name) ?? "").split(",").filter(Boolean);
  return {
    axis: query.get("x") || "step",
    smooth: Math.min(0.99, Math.max(0, figure("smooth") || 0)),
    log: query.get("log") === "1",
    band: query.get("band"),
    first: figure("first"),
    last: figure("last"),
    hide: new Set(list("hide")),
    brush: query.get("brush") ?? "",
    sx: query.get("sx") ?? "",
    sy: query.get("sy") ?? "",
    sc: query.get("sc") ?? "",
  };
}

/**
 * Change values of the address; null and "" leave one out. `step`: the browser's back button
 * comes back to the view before.
 */
export function write(changes, { step = false } = {}) {
  const url = new URL(location);
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === "") url.searchParams.delete(name);
    else url.searchParams.set(name, value);
  }
  url.search = url.search.replaceAll("%2C", ",");
  if (url.href === location.href) return;
  history[step ? "pushState" : "replaceState"](null, "", url);
  keepLinks();
}

/** The tabs lead to the same view of another part; metrics are chosen for the same view. */
export function keepLinks() {
  const here = new URLSearchParams(location.search);
  for (const link of document.querySelectorAll(LINKS)) {
    const tab = new URL(link.href).searchParams.get("tab");
    const query = new URLSearchParams(here);
    if (tab) query.set("tab", tab);
    else query.delete("tab");
    link.search = query.toString().replaceAll("%2C", ",");
  }
  const choose = document.querySelector("form.choose");
  if (!choose) return;
  for (const old of choose.querySelectorAll("input[type=hidden]")) old.remove();
  for (const [name, value] of here) {
    if (name === "metric") continue;
    const field = document.createElement("input");
    field.type = "hidden";
    field.name = name;
    field.value = value;
    choose.append(field);
  }
}
