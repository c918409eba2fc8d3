// The slider goes to a time; the page has the nodes of that time, drawn here as a map.
import { exact } from "../../format.js";
import { GpuMap } from "../../gpumap.js";

const slider = document.getElementById("slider");
const at = (moment) => `${new Date(Number(moment)).toISOString().slice(0, 19)}Z`;

slider?.addEventListener("input", () => {
  document.getElementById("chosen").textContent = exact(Number(slider.value));
});
slider?.addEventListener("change", () => {
  const query = new URLSearchParams(location.search);
  query.set("at", at(slider.value));
  location.search = query;
});

const place = document.getElementById("map");
if (place) {
  const map = new GpuMap(place, document.getElementById("legend"));
  map.show(JSON.parse(place.dataset.nodes));
}
