// Values as text with their units, as formats.py writes them on the server.
export const NONE = "–";
const trimmed = (text) => text.includes(".") ? text.replace(/0+$/, "").replace(/\.$/, "") : text;

export function number(value, digits = 4) {
  if (value === null || value === undefined) return NONE;
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "-∞";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e15) return value.toLocaleString("en-US");
  if (size >= 10 ** (digits - 1) && size < 1e15) {
    return value.toLocaleString("en-US", { maximumFractionDigits: 0 });
  }
  if (size < 1e-4 || size >= 1e15) {
    const [mantissa, exponent] = value.toExponential(digits - 2).split("e");
    return `${trimmed(mantissa)}e${Number(exponent)}`;
  }
  return trimmed(value.toFixed(Math.max(0, digits - 1 - Math.floor(Math.log10(size)))));
}

export const percent = (share, digits = 0) =>
  share === null || share === undefined ? NONE : `${(100 * share).toFixed(digits)} %`;

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return NONE;
  if (seconds < 0) return `-${duration(-seconds)}`;
  if (seconds < 1) return seconds ? `${Math.round(1000 * seconds)} ms` : "0 s";
  if (seconds < 10) return `${Math.floor(10 * seconds) / 10} s`;
  const whole = Math.floor(seconds);
  for (const [unit, name, below, smaller] of [
    [86400, "d", 3600, "h"], [3600, "h", 60, "min"], [60, "min", 1, "s"],
  ]) {
    if (whole >= unit) {
      const rest = Math.floor((whole % unit) / below);
      return `${Math.floor(whole / unit)} ${name}${rest ? ` ${rest} ${smaller}` : ""}`;
    }
  }
  return `${whole} s`;
}

export function gpuTime(seconds) {
  if (seconds === null || seconds === undefined) return NONE;
  for (const [unit, name] of [[3600, "GPU-h"], [60, "GPU-min"]]) {
    if (seconds >= unit) return `${number(seconds / unit, 3)} ${name}`;
  }
  return `${number(seconds, 3)} GPU-s`;
}

/** Text of a program without terminal escapes and other control characters. */
export const plain = (text) =>
  text.replace(/\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)/g, "")
    .replace(/[\x00-\x08\x0b-\x1f\x7f-\x9f]/g, "\ufffd");

export function relative(moment, now = Date.now()) {
  const seconds = (now - moment) / 1000;
  if (Math.abs(seconds) < 2) return "now";
  const short = duration(Math.floor(Math.abs(seconds)) || 1).split(" ").slice(0, 2).join(" ");
  return seconds > 0 ? `${short} ago` : `in ${short}`;
}

export const exact = (moment) =>
  `${new Date(moment).toISOString().slice(0, 19).replace("T", " ")} UTC`;

/** A <time> of an ISO text or of milliseconds; a dash where there is none. */
export function time(value) {
  if (value === null || value === undefined) return document.createTextNode(NONE);
  const made = document.createElement("time");
  const moment = new Date(value);
  made.dateTime = moment.toISOString();
  made.title = exact(moment);
  made.textContent = relative(moment);
  return made;
}

/** The badge of a job's state, from the page's badge_templates(). */
export function badge(state) {
  const all = document.getElementById("badges")?.content;
  const found = [...(all?.children ?? [])].find((item) => item.dataset.state === state);
  if (found) return found.cloneNode(true);
  const plain = document.createElement("span");
  plain.className = "badge off";
  plain.textContent = state;
  return plain;
}

/** Keeps all relative times of the page current. */
export function keepTimes() {
  setInterval(() => {
    const now = Date.now();
    for (const item of document.querySelectorAll("time[datetime]")) {
      const text = relative(new Date(item.dateTime), now);
      if (item.textContent !== text) item.textContent = text;
    }
  }, 5000);
}

/** The order of metrics: losses first; what the trainer reports of itself last. */
const metricRank = (name) => /loss/i.test(name) ? 0 : /^(checkpoint_\w+|(step|busy|data_wait)_s|mfu_peak_measured)$/.test(name) ? 2 : 1;
export const byRank = (a, b) => metricRank(a) - metricRank(b) || (a < b ? -1 : Number(a > b));
