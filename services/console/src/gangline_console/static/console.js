// What every page has: theme switch, keys, dialogs, times that stay current.
import { keepTimes } from "./format.js";
import { keys } from "./keys.js";
import { keepAge } from "./live.js";
import "./search.js";

const root = document.documentElement;

function switchTheme() {
  root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
  localStorage.setItem("theme", root.dataset.theme);
  document.dispatchEvent(new CustomEvent("theme"));
}

document.getElementById("theme").addEventListener("click", switchTheme);
document.getElementById("help").addEventListener("click", () =>
  document.getElementById("keys").showModal());
document.addEventListener("click", (event) => {
  const opener = event.target.closest("[data-opens]");
  if (opener) document.getElementById(opener.dataset.opens)?.showModal();
  const closer = event.target.closest("[data-closes]");
  if (closer) closer.closest("dialog")?.close();
  for (const menu of document.querySelectorAll("details.menu[open]")) {
    if (!menu.contains(event.target)) menu.open = false;
  }
});
// A form is sent once, however often its button is pressed.
document.addEventListener("submit", (event) => {
  if (event.target.method !== "post" || event.defaultPrevented) return;
  const button = event.submitter;
  if (button) setTimeout(() => { button.disabled = true; });
});
addEventListener("pageshow", (event) => {
  if (event.persisted) for (const button of document.querySelectorAll("form[method=post] button")) button.disabled = false;
});
/** On a narrow screen the lists of pages and tabs are lines to scroll: the page's own is in sight. */
for (const line of document.querySelectorAll("nav.side, nav.tabs")) {
  const own = line.querySelector("[aria-current]");
  if (own) line.scrollLeft = own.offsetLeft - (line.clientWidth - own.offsetWidth) / 2;
}
keys({ t: switchTheme });
keepTimes();
keepAge("timeless" in document.body.dataset);
