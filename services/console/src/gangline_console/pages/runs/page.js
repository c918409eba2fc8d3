// The selection of runs: in the address, so that it survives pages, orders, reloads and back.
import { narrowed } from "../../choose.js";

const form = document.getElementById("pick");
const most = Number(form?.dataset.most ?? 0);

const boxes = () => [...form.querySelectorAll("input[name=run]")];

function selection() {
  const given = new URLSearchParams(location.search).get("sel") ?? "";
  return new Set(given.split(",").filter(Boolean));
}

/** A link or a form of this page, with the selection as it is now. */
function keep(link, ids) {
  const url = new URL(link.href);
  if (ids) url.searchParams.set("sel", ids);
  else url.searchParams.delete("sel");
  link.href = url;
}

function show(chosen) {
  const ids = [...chosen].join(",");
  for (const box of boxes()) {
    box.checked = chosen.has(box.value);
    box.disabled = !box.checked && chosen.size >= most;
    box.closest("tr").classList.toggle("picked", box.checked);
  }
  for (const link of document.querySelectorAll("a.keep")) {
    if (!link.pathname.endsWith(".csv")) keep(link, ids);
  }
  for (const other of document.querySelectorAll("form.filters, form.choose")) {
    other.querySelector("input[name=sel]")?.remove();
    if (!ids) continue;
    const field = document.createElement("input");
    field.type = "hidden";
    field.name = "sel";
    field.value = ids;
    other.append(field);
  }
  const button = document.getElementById("compare");
  button.disabled = !chosen.size;
  button.textContent = chosen.size ? `Compare ${chosen.size} selected` : "Compare selected";
  document.getElementById("none").hidden = !chosen.size;
  document.getElementById("picked").textContent = chosen.size >= most
    ? `${most} runs are the most that a comparison takes.`
    : `Select up to ${most} runs; the selection is kept from page to page.`;
}

function chosenNow(chosen) {
  const url = new URL(location);
  if (chosen.size) url.searchParams.set("sel", [...chosen].join(","));
  else url.searchParams.delete("sel");
  history.replaceState(null, "", url);
  show(chosen);
}

if (form) {
  const visible = new Set(boxes().map((box) => box.value));
  form.addEventListener("change", () => {
    const others = [...selection()].filter((id) => !visible.has(id));
    const here = boxes().filter((box) => box.checked).map((box) => box.value);
    chosenNow(new Set([...others, ...here].slice(0, most)));
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const chosen = selection();
    if (!chosen.size) return;
    const query = new URLSearchParams({ runs: [...chosen].join(",") });
    location.assign(`/console/compare?${query.toString().replaceAll("%2C", ",")}`);
  });
  document.getElementById("none").addEventListener("click", () => chosenNow(new Set()));
  addEventListener("pageshow", () => show(selection()));
  show(selection());
}
narrowed(document.querySelector("form.choose"));
