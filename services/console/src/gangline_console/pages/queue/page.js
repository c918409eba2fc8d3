// The queue is read again when it changed, and every 15 s for its times.
import { follow, paced } from "../../live.js";
import { readAgain, replacePart } from "../../parts.js";

const OLDEST_MS = 15_000;

async function again() {
  const text = await readAgain();
  if (text) replacePart("part", text);
}

const soon = paced(again);
follow("/v1/changes?kind=queue", { queue: soon, snapshot: soon }, { onAgain: soon });
setInterval(soon, OLDEST_MS);
document.addEventListener("visibilitychange", soon);
document.getElementById("team").addEventListener("change", (event) => event.target.form.requestSubmit());
