// Alerts and silences are read again when an alert is raised, changed or resolved.
import { follow, paced } from "../../live.js";
import { readAgain, replacePart } from "../../parts.js";

const read = paced(async () => {
  const text = await readAgain();
  if (text) for (const part of ["held", "alerts", "silences"]) replacePart(part, text);
});

follow("/v1/changes?kind=alert", { alert: read, snapshot: read }, { onAgain: read });
document.addEventListener("visibilitychange", read);
