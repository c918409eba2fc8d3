// Keys: `/` search, `?` help, j and k rows, x selects, g and a letter goes to a page.
const writes = (target) =>
  target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName) &&
  !/^(checkbox|radio|button|submit)$/.test(target.type);

function move(by) {
  const rows = [...document.querySelectorAll("[data-row]")].filter((row) => row.offsetParent);
  if (!rows.length) return;
  const at = rows.findIndex((row) => row.contains(document.activeElement));
  const next = rows[Math.min(rows.length - 1, Math.max(0, at < 0 ? 0 : at + by))];
  (next.querySelector("a.row") ?? next.querySelector("a, button, input") ?? next).focus();
  next.scrollIntoView({ block: "nearest" });
}

function go(letter) {
  for (const link of document.querySelectorAll("nav.side a")) {
    if (link.dataset.key === letter) return link.click();
  }
}

/** Bind the keys of all pages, and further ones: {key: function}. */
export function keys(own = {}) {
  let going = -Infinity;
  const all = {
    "/": () => document.getElementById("search-all").focus(),
    "?": () => document.getElementById("keys").showModal(),
    j: () => move(1),
    k: () => move(-1),
    x: () => document.activeElement.closest("[data-row]")
      ?.querySelector("input[type=checkbox]")?.click(),
    ...own,
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) {
      return;
    }
    if (event.key === "Escape" && writes(event.target)) return event.target.blur();
    if (writes(event.target)) return;
    if (performance.now() - going < 1000) {
      going = -Infinity;
      return go(event.key.toLowerCase());
    }
    if (event.key === "g") {
      going = performance.now();
    } else if (all[event.key]) {
      event.preventDefault();
      all[event.key](event);
    }
  });
}
