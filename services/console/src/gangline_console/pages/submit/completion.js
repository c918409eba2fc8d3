// Completes names of fields: Ctrl+Space or typing opens the list, Tab or Enter takes one.
const LINE_PX = 20;
const KEY = /^(\s*)([a-z_]*)$/;

/** The dotted name of the mapping that a line is in, by the indents above it. */
function parent(lines, indent) {
  const names = [];
  let inner = indent;
  for (const line of lines.toReversed()) {
    const found = /^(\s*)([a-z_]+):/.exec(line);
    if (found && found[1].length < inner) {
      names.unshift(found[2]);
      inner = found[1].length;
    }
    if (!inner) break;
  }
  return names.join(".");
}

export class Completion {
  /** `known`: [{name, about}], dotted names of all fields. */
  constructor(area, list, known) {
    Object.assign(this, { area, list, known, found: [], at: -1 });
    list.setAttribute("role", "listbox");
    area.addEventListener("input", () => this.open(false));
    area.addEventListener("blur", () => setTimeout(() => this.close(), 150));
    area.addEventListener("keydown", (event) => this.key(event));
    list.addEventListener("mousedown", (event) => {
      const item = event.target.closest("li");
      if (!item) return;
      event.preventDefault();
      this.at = [...list.children].indexOf(item);
      this.take();
    });
  }

  open(asked) {
    const before = this.area.value.slice(0, this.area.selectionStart);
    const lines = before.split("\n");
    const found = KEY.exec(lines.pop());
    const rest = this.area.value.slice(this.area.selectionStart).split("\n")[0];
    if (!found || rest.trim() || (!asked && !found[2])) return this.close();
    const inside = parent(lines, found[1].length);
    const prefix = inside ? `${inside}.` : "";
    this.token = found[2];
    this.found = this.known.filter(({ name }) => name.startsWith(prefix + found[2])
      && !name.slice(prefix.length).includes(".") && name !== prefix + found[2]);
    if (!this.found.length) return this.close();
    this.prefix = prefix;
    this.at = asked ? 0 : -1;
    this.draw(lines.length);
  }

  draw(line) {
    this.list.replaceChildren(...this.found.slice(0, 40).map(({ name, about }) => {
      const item = document.createElement("li");
      item.setAttribute("role", "option");
      item.textContent = name.slice(this.prefix.length);
      if (about) item.append(Object.assign(document.createElement("span"), { textContent: about }));
      return item;
    }));
    this.list.style.top = `${(line + 1) * LINE_PX + 10 - this.area.scrollTop}px`;
    this.list.style.left = `${this.area.offsetLeft + 8}px`;
    this.list.hidden = false;
    this.mark();
  }

  mark() {
    [...this.list.children].forEach((item, at) => {
      item.setAttribute("aria-selected", String(at === this.at));
      if (at === this.at) item.scrollIntoView({ block: "nearest" });
    });
  }

  key(event) {
    if (event.ctrlKey && event.key === " ") {
      event.preventDefault();
      return this.open(true);
    }
    if (this.list.hidden) return undefined;
    const most = this.list.children.length;
    if (event.key === "Escape") this.close();
    else if (event.key === "ArrowDown") this.at = (this.at + 1) % most;
    else if (event.key === "ArrowUp") this.at = (this.at - 1 + most) % most;
    else if (event.key === "Tab" || (event.key === "Enter" && this.at >= 0)) this.take();
    else return undefined;
    event.preventDefault();
    event.stopPropagation();
    return this.mark();
  }

  take() {
    const name = this.found[Math.max(0, this.at)].name.slice(this.prefix.length);
    const end = this.area.selectionStart;
    this.area.setRangeText(`${name}: `, end - this.token.length, end, "end");
    this.close();
    this.area.dispatchEvent(new Event("input", { bubbles: true }));
    this.close();
  }

  close() {
    this.list.hidden = true;
    this.at = -1;
  }
}
