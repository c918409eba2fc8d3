import { Chart } from "../../charts.js";

const xs = Array.from({ length: 200 }, (_, at) => at * 10);
new Chart(document.getElementById("sample-chart")).show([
  { name: "train", xs, ys: xs.map((x) => 2 * Math.exp(-x / 500) + 0.05 * Math.sin(x / 30)) },
  { name: "valid", xs, ys: xs.map((x) => 2.1 * Math.exp(-x / 550) + 0.1) },
]);
