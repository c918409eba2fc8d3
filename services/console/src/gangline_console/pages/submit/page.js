// The file and the form are kept in step by the server's checks; see checking.py and editing.py.
import { replacePart } from "../../parts.js";
import { Completion } from "./completion.js";

const CHECK_MS = 350;
const form = document.getElementById("submit");
const area = document.getElementById("text");
const gutter = document.getElementById("lines");
const draft = `submit${location.search}`;
const changes = new Map(); // of the form, by field, until the server has put them into the file
let asking = null, timer = 0, wrongLines = new Map();

function drawLines() {
  const count = area.value.split("\n").length;
  const made = [];
  for (let line = 1; line <= count; line += 1) {
    const item = document.createElement("span");
    item.textContent = String(line);
    if (wrongLines.has(line)) {
      item.className = "bad";
      item.title = wrongLines.get(line);
    }
    made.push(item);
  }
  gutter.replaceChildren(...made);
  gutter.scrollTop = area.scrollTop;
}

function showErrors(errors) {
  wrongLines = new Map(errors.filter((item) => item.line).map((item) => [item.line, item.message]));
  for (const place of form.querySelectorAll("[data-wrong]")) {
    const found = errors.find((item) => item.field === place.dataset.wrong);
    place.hidden = !found;
    place.textContent = found?.message ?? "";
  }
  area.setAttribute("aria-invalid", String(errors.length > 0));
}

function showResult(result, sent) {
  if (result.text !== sent && area.value === sent) {
    const at = area.selectionStart;
    area.value = result.text;
    area.setSelectionRange(at, at);
    remember();
  }
  document.getElementById("form").disabled = !result.readable;
  document.getElementById("form-note").hidden = result.readable;
  if (result.readable) {
    for (const field of form.querySelectorAll("[data-field]")) {
      const value = result.values[field.dataset.field] ?? "";
      const busy = field === document.activeElement || changes.has(field.dataset.field);
      if (!busy && field.value !== value) field.value = value;
    }
  }
  const errors = result.problem ? [...result.errors, { line: null, message: result.problem }] : result.errors;
  showErrors(errors);
  drawLines();
}

function says(text) {
  const place = document.getElementById("checking");
  place.hidden = !text;
  place.textContent = text;
}

async function check() {
  clearTimeout(timer);
  asking?.abort();
  const mine = asking = new AbortController();
  const sent = area.value;
  const mineChanged = new Map(changes);
  const body = new URLSearchParams({ csrf: form.elements.csrf.value, text: sent });
  for (const [name, value] of mineChanged) {
    body.append("field", name);
    body.append("value", value);
  }
  says("checking…");
  try {
    const answer = await fetch(form.dataset.check, { method: "POST", body, signal: mine.signal });
    if (!answer.ok) {
      says(answer.status === 401 || answer.redirected ? "your session has ended: sign in again"
        : `not checked: the console answered ${answer.status}`);
      return;
    }
    const made = replacePart("checked", await answer.text());
    const result = JSON.parse(made.dataset.result);
    if (area.value !== sent && mineChanged.size) return later(); // both changed: once more
    for (const [name, value] of mineChanged) if (changes.get(name) === value) changes.delete(name);
    showResult(result, sent);
    document.getElementById("send").disabled = result.blocked;
    says("");
    if (changes.size || (area.value !== sent && area.value !== result.text)) later();
  } catch (error) {
    if (error.name !== "AbortError") says("not checked: the gateway does not answer");
  }
}

function later() {
  clearTimeout(timer);
  timer = setTimeout(check, CHECK_MS);
}

const remember = () => sessionStorage.setItem(draft, area.value);

function typed() {
  remember();
  drawLines();
  later();
}

function goTo(line) {
  const before = area.value.split("\n").slice(0, line - 1).join("\n").length + (line > 1 ? 1 : 0);
  const end = area.value.indexOf("\n", before);
  area.focus();
  area.setSelectionRange(before, end < 0 ? area.value.length : end);
  area.scrollTop = Math.max(0, (line - 5) * 20);
}

async function take(file) {
  if (!file) return;
  area.value = (await file.text()).replaceAll("\r\n", "\n").slice(0, 500_000);
  typed();
}

area.addEventListener("input", typed);
area.addEventListener("scroll", () => { gutter.scrollTop = area.scrollTop; });
form.addEventListener("input", (event) => {
  const field = event.target.closest("[data-field]");
  if (!field) return;
  changes.set(field.dataset.field, field.value);
  later();
});
form.addEventListener("click", (event) => {
  const found = event.target.closest("[data-line]");
  if (found) goTo(Number(found.dataset.line));
});
form.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && event.target.matches("input[data-field]")) event.preventDefault();
});
form.addEventListener("submit", () => {
  remember(); // if the console or the gateway does not answer, the text is still here
  sessionStorage.setItem("submitted", draft);
  document.getElementById("send").disabled = true;
});
addEventListener("pageshow", (event) => { if (event.persisted) check(); });
document.getElementById("drop").addEventListener("change", (event) => take(event.target.files[0]));
const editor = document.getElementById("editor");
for (const name of ["dragover", "dragleave", "drop"]) {
  editor.addEventListener(name, (event) => {
    if (![...(event.dataTransfer?.types ?? [])].includes("Files")) return;
    event.preventDefault();
    editor.classList.toggle("over", name === "dragover");
    if (name === "drop") take(event.dataTransfer.files[0]);
  });
}
new Completion(area, document.getElementById("completions"),
  [...document.querySelectorAll("[data-known]")].map((cell) =>
    ({ name: cell.dataset.known, about: cell.nextElementSibling.textContent })));

const first = JSON.parse(document.getElementById("checked").dataset.result);
const failed = sessionStorage.getItem("submitted"); // it is not there after a job was made
sessionStorage.removeItem("submitted");
if (failed && first.errors.length) { // the server sent the text back
  sessionStorage.removeItem(failed);
  remember();
}
const kept = sessionStorage.getItem(draft);
if (kept !== null && !first.errors.length) area.value = kept;
showErrors(first.errors);
drawLines();
if (!first.errors.length) check();
