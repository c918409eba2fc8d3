// The table, or the node, is read again when nodes change.
import { follow, paced } from "../../live.js";
import { readAgain, replacePart } from "../../parts.js";

const one = document.getElementById("node")?.dataset.node;
const part = one ? "node" : "nodes";

const read = paced(async () => {
  const text = await readAgain();
  if (text) replacePart(part, text);
});

follow("/v1/changes?kind=node", {
  node: (node) => { if (!one || node.node_id === one) read(); },
  snapshot: read,
}, { onAgain: read });
document.addEventListener("visibilitychange", read);
