// Log lines in a window: at most WINDOW of them are in the page, further ones come by scrolling.
import { plain } from "../../format.js";
import { atMost, get } from "../../live.js";

const WINDOW = 2000, PAGE = 400;
const ERROR = /(error|exception|traceback|fatal|critical|panic|segmentation fault|out of memory|killed)/i;

const keyOf = (row) => `${row.attempt}.${row.rank}.${row.line}`;

/** One line as an element; parts of its text that are equal to `needle` are marked. */
export function lineOf(row, needle = "") {
  const made = document.createElement("div");
  made.className = `line${row.stream === "stderr" ? " stderr" : ""}${ERROR.test(row.text) ? " error" : ""}`;
  const [who, when, text] = ["rank", "rank", ""].map((name) => {
    const cell = document.createElement("span");
    cell.className = name;
    return cell;
  });
  who.textContent = row.attempt > 1 ? `${row.attempt}/${row.rank}` : String(row.rank);
  who.title = `attempt ${row.attempt}, rank ${row.rank} on ${row.node_id}, line ${row.line + 1}`;
  when.textContent = row.time.slice(11, 19);
  when.title = `${row.time.slice(0, 23).replace("T", " ")} UTC`;
  text.append(...marked(plain(row.text), needle));
  made.append(who, when, text);
  made.dataset.key = keyOf(row);
  made.dataset.cursor = `${row.attempt}.${Date.parse(row.time)}.${row.rank}.${row.line}`;
  return made;
}

function marked(text, needle) {
  if (!needle) return [text];
  const parts = [], lower = text.toLowerCase();
  let from = 0;
  for (let at = lower.indexOf(needle); at >= 0; at = lower.indexOf(needle, from)) {
    const found = document.createElement("mark");
    found.textContent = text.slice(at, at + needle.length);
    parts.push(text.slice(from, at), found);
    from = at + needle.length;
  }
  parts.push(text.slice(from));
  return parts;
}

/** The last lines, in a place that holds `most` of them. */
export function tail(place, most) {
  let waiting = [];
  const flush = atMost(200, () => {
    const stay = place.scrollHeight - place.scrollTop - place.clientHeight < 40;
    place.append(...waiting.slice(-most).map((row) => lineOf(row)));
    waiting = [];
    while (place.children.length > most) place.firstElementChild.remove();
    if (stay) place.scrollTop = place.scrollHeight;
  });
  return (row) => { waiting.push(row); flush(); };
}

/** Follows, searches and pages the log of a job. */
export function logs(id) {
  const place = document.getElementById("lines"), note = document.getElementById("log-note");
  const form = document.getElementById("log-form"), following = document.getElementById("follow");
  const values = new FormData(form);
  const filter = new URLSearchParams();
  for (const [name, target] of [["rank", "rank"], ["attempt", "attempt"], ["find", "contains"]]) {
    if (values.get(name)) filter.set(target, values.get(name));
  }
  if (values.get("errors")) filter.set("errors", "true");
  const needle = (filter.get("contains") ?? "").toLowerCase();
  document.getElementById("download").search = filter.toString();
  const path = `/v1/training-jobs/${id}/logs`;
  let atEnd = false, ready = false, busy = false, waiting = [], recent = [], skipped = 0;

  const line = (row) => lineOf(row, needle);

  function append(rows) {
    const known = new Set([...place.children].map((item) => item.dataset.key));
    const fresh = rows.filter((row) => !known.has(keyOf(row)));
    place.append(...fresh.map(line));
    while (place.children.length > WINDOW) place.firstElementChild.remove();
  }

  /** The newest line is here: history's, then those of the stream that history may not have yet. */
  function ended() {
    atEnd = true;
    const [attempt, ms] = (place.firstElementChild?.dataset.cursor ?? "0.0").split(".").map(Number);
    append(recent.slice(-PAGE).filter((row) =>
      row.attempt > attempt || (row.attempt === attempt && Date.parse(row.time) >= ms)));
  }

  function told() {
    const count = place.children.length;
    note.textContent = !count ? (filter.size ? "No line matches." : "No lines yet. They show as soon as ranks write some.")
      : `${count.toLocaleString("en-US")} lines here${atEnd ? ", up to the newest" : ""}${skipped ? `; ${skipped.toLocaleString("en-US")} passed too fast to be shown, scroll up to read them` : ""}`;
  }

  const failed = (error) => { note.textContent = `The log cannot be read: ${error.message}. Load the page again.`; };
  const bottom = () => place.scrollHeight - place.scrollTop - place.clientHeight < 40;
  const down = () => { place.scrollTop = place.scrollHeight; };

  async function ask(more) {
    const query = new URLSearchParams(filter);
    for (const [name, value] of Object.entries(more)) query.set(name, value);
    return get(`${path}?${query}`);
  }

  async function toEnd() {
    const page = await ask({ tail: PAGE });
    place.replaceChildren();
    append(page.lines);
    ended();
    down();
    told();
  }

  async function toStart() {
    following.checked = false;
    const page = await ask({ limit: PAGE });
    place.replaceChildren();
    append(page.lines);
    atEnd = false;
    if (page.lines.length < PAGE) ended();
    place.scrollTop = 0;
    told();
  }

  async function older() {
    const first = place.firstElementChild;
    if (!first || busy) return;
    busy = true;
    try {
      const page = await ask({ tail: PAGE, before: first.dataset.cursor });
      const before = place.scrollHeight - place.scrollTop;
      place.prepend(...page.lines.map(line));
      while (place.children.length > WINDOW) {
        place.lastElementChild.remove();
        atEnd = false;
      }
      place.scrollTop = place.scrollHeight - before;
      told();
    } finally {
      busy = false;
    }
  }

  async function newer() {
    const last = place.lastElementChild;
    if (!last || busy || atEnd) return;
    busy = true;
    try {
      const page = await ask({ limit: PAGE, cursor: last.dataset.cursor });
      append(page.lines);
      if (page.lines.length < PAGE) ended();
      told();
    } finally {
      busy = false;
    }
  }

  /** Lines of the stream come in bursts: once a frame they are shown, the newest ones only. */
  const flush = atMost(100, () => {
    const rows = waiting;
    waiting = [];
    if (!ready) {
      waiting = rows;
      return setTimeout(flush, 200);
    }
    if (!atEnd) return;
    skipped += Math.max(0, rows.length - PAGE);
    const stay = following.checked || bottom();
    append(rows.slice(-PAGE));
    if (stay && following.checked) down();
    told();
  });

  function comes(row) {
    if (needle && !row.text.toLowerCase().includes(needle)) return;
    if (filter.has("errors") && !ERROR.test(row.text)) return;
    recent.push(row);
    if (recent.length > 2 * PAGE) recent = recent.slice(-PAGE);
    waiting.push(row);
    flush();
  }

  /** The stream began again without its cursor: lines between may be missing here. */
  function again() {
    atEnd = false;
    (following.checked || !place.lastElementChild ? toEnd() : newer()).catch(failed);
  }

  place.addEventListener("scroll", atMost(100, () => {
    if (place.scrollTop < 200) older().catch(failed);
    else if (bottom()) newer().catch(failed);
  }));
  let movedAt = -Infinity;
  for (const name of ["wheel", "touchmove", "pointerdown", "keydown"]) {
    place.addEventListener(name, () => { movedAt = performance.now(); }, { passive: true });
  }
  place.addEventListener("scroll", () => { // by the user, not by lines that come
    if (performance.now() - movedAt < 1000 && !bottom()) following.checked = false;
  });
  following.addEventListener("change", () => { if (following.checked) toEnd().catch(failed); });
  document.getElementById("to-start").addEventListener("click", () => toStart().catch(failed));
  document.getElementById("to-end").addEventListener("click", () => { following.checked = true; toEnd().catch(failed); });
  async function errorLines() {
    if (filter.has("errors")) return;
    const page = await ask({ errors: "true", limit: 100 });
    document.getElementById("errors").hidden = !page.lines.length;
    document.getElementById("error-count").textContent = page.lines.length === 100 ? "100 or more" : String(page.lines.length);
    document.getElementById("error-lines").replaceChildren(...page.lines.map(line));
  }

  toEnd().catch(failed).finally(() => { ready = true; }).then(errorLines).catch(() => {});
  return {
    query: { rank: filter.get("rank"), attempt: filter.get("attempt"), tail: "200" },
    handlers: { log: comes },
    again,
  };
}
