// The slider goes to a time; the map of that time comes from REST.
import { exact } from "../../format.js";
import { GpuMap } from "../../gpumap.js";
import { get } from "../../live.js";

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
  try {
    const found = await get(`/v1/history/at?time=${encodeURIComponent(place.dataset.at)}`);
    map.show(found.gpus.nodes);
  } catch (error) {
    place.textContent = `The map cannot be read now: ${error.message}`;
  }
}
