// The table, or the node, is read again when nodes change.
import { atMost, follow } from "../../live.js";
import { readAgain, replacePart } from "../../parts.js";

const one = document.getElementById("node")?.dataset.node;
const part = one ? "node" : "nodes";

// A table of many nodes changes all the time, and is long to make.
const rows = document.querySelectorAll("#nodes tr[data-node]").length;

const read = atMost(rows > 100 ? 15_000 : 2000, async () => {
  const text = await readAgain();
  if (text) replacePart(part, text);
});

follow("/v1/changes?kind=node", {
  node: (node) => { if (!one || node.node_id === one) read(); },
  snapshot: read,
}, { onAgain: read });
document.addEventListener("visibilitychange", read);
