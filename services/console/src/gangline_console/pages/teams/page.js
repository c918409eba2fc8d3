// The print button of the weekly report, and the tables of the small charts.
import { tableRow } from "../../charts.js";
import { exact, number } from "../../format.js";

document.getElementById("print")?.addEventListener("click", () => print());

function fill(details) {
  const { since, until } = details.closest("table").dataset;
  const gpus = details.dataset.gpus.split(",").map(Number);
  const part = (Number(until) - Number(since)) / gpus.length;
  const rows = gpus.map((value, at) =>
    tableRow("td", [exact((Number(since) + at * part) * 1000), number(value, 3)]));
  for (const row of rows) row.lastElementChild.className = "n";
  details.querySelector("tbody").replaceChildren(...rows);
}

for (const details of document.querySelectorAll("details[data-gpus]")) {
  details.addEventListener("toggle", () => { if (details.open) fill(details); });
}
