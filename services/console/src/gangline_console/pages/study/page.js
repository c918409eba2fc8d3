// A study: its charts are read from REST, the rest is made again by the server while it runs.
import { readAgain, replacePart } from "../../parts.js";

const EVERY_MS = 5000;
const place = document.getElementById("study");
const { study, tab, ended } = place.dataset;
const PARTS = { overview: ["state", "figures", "importance", "best"], trials: ["state", "trials"] };
const DRAWN = { overview: () => import("./overview.js"), axes: () => import("./axes.js") };

async function begin() {
  const drawn = DRAWN[tab] ? await (await DRAWN[tab]()).start(study) : null;
  if (drawn) document.addEventListener("theme", drawn.redraw);
  if (ended === "1") return;
  const timer = setInterval(async () => {
    const html = await readAgain();
    if (html === null) return;
    for (const id of PARTS[tab] ?? []) replacePart(id, html);
    await drawn?.read?.();
    const fresh = new DOMParser().parseFromString(html, "text/html").getElementById("study");
    if (fresh?.dataset.ended !== "1") return;
    clearInterval(timer);
    location.reload(); // once: its end has a note, and no button to stop it
  }, EVERY_MS);
}

begin();
