// What is shown, as files: tables as CSV, plots as PNG.

/** Rows of values as CSV (RFC 4180). A text that a spreadsheet takes for a formula gets a quote. */
export function csv(rows) {
  return rows.map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
}

function cell(value) {
  if (value === null || value === undefined) return "";
  let text = String(value);
  if (typeof value === "string" && /^[=+\-@\t\r]/.test(text) && Number.isNaN(Number(text))) {
    text = `'${text}`;
  }
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** Rows of a table of the page; `data-full` and <time> hold more than what is shown. */
export function rowsOf(table) {
  return [...table.rows].map((row) => [...row.cells].map((item) =>
    item.dataset.full ?? item.querySelector("time")?.dateTime ?? item.innerText.trim()));
}

/** Give the browser a file to keep. */
export function save(name, blob) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name.replace(/[^\w.-]+/g, "-");
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

export const saveCsv = (name, rows) =>
  save(`${name}.csv`, new Blob([csv(rows)], { type: "text/csv" }));

/**
 * A plot as PNG: a title, the canvas, and a legend of lines [{name, colour, dashes}].
 * `scale` is the number of the canvas' pixels in one of the page's.
 */
export function savePng(name, canvas, { title, lines = [], ground, text, scale = devicePixelRatio }) {
  const row = 18 * scale, head = 32 * scale, pad = 12 * scale;
  const columns = Math.max(1, Math.floor(canvas.width / (260 * scale)));
  const made = document.createElement("canvas");
  made.width = canvas.width + 2 * pad;
  made.height = head + canvas.height + Math.ceil(lines.length / columns) * row + 2 * pad;
  const context = made.getContext("2d");
  context.fillStyle = ground;
  context.fillRect(0, 0, made.width, made.height);
  context.fillStyle = text;
  context.font = `600 ${14 * scale}px system-ui, sans-serif`;
  context.fillText(title, pad, 22 * scale);
  context.drawImage(canvas, pad, head);
  context.font = `${12 * scale}px system-ui, sans-serif`;
  lines.forEach((line, at) => {
    const x = pad + (at % columns) * 260 * scale;
    const y = head + canvas.height + pad + Math.floor(at / columns) * row;
    context.strokeStyle = line.colour;
    context.lineWidth = 2 * scale;
    context.setLineDash(line.dashes.map((part) => part * scale));
    context.beginPath();
    context.moveTo(x, y);
    context.lineTo(x + 24 * scale, y);
    context.stroke();
    context.fillText(line.name.slice(0, 32), x + 30 * scale, y + 4 * scale);
  });
  made.toBlob((blob) => save(`${name}.png`, blob), "image/png");
}
