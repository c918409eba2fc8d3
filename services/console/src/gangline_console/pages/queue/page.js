// The queue is read again when it changed, at most every 2 s, and every 15 s for its times.
import { atMost, follow } from "../../live.js";
import { readAgain, replacePart } from "../../parts.js";

const AGAIN_MS = 2000, OLDEST_MS = 15_000;

async function again() {
  const text = await readAgain();
  if (text) replacePart("part", text);
}

const soon = atMost(AGAIN_MS, again);
follow("/v1/changes?kind=queue", { queue: soon, snapshot: soon }, { onAgain: soon });
setInterval(soon, OLDEST_MS);
document.addEventListener("visibilitychange", soon);
document.getElementById("team").addEventListener("change", (event) => event.target.form.requestSubmit());
