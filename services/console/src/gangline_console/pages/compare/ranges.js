// The form beside parallel axes: a range of one axis, for those who do not drag.

const HALF = 0.4; // of the place of a word on its axis

/** Fills the form with the axes; `keep(key, [low, high])` is called with the range that it asks for. */
export function fillRanges(form, axes, keep) {
  const { axis, word, low, high } = form.elements;
  axis.replaceChildren(...axes.map((item) => option(item.key, item.title)));

  const chosen = () => axes.find((one) => one.key === axis.value);

  function fill() {
    const item = chosen();
    const words = item.texts.length > 0;
    word.parentElement.hidden = !words;
    for (const end of [low, high]) end.parentElement.hidden = words;
    word.replaceChildren(...item.texts.map((text, at) => option(String(at), text)));
    if (!words) [low.value, high.value] = [item.low, item.high];
  }

  axis.addEventListener("change", fill);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const item = chosen();
    if (event.submitter?.name === "all") return keep(item.key, null);
    const at = Number(word.value);
    const end = (input, none) => input.value === "" ? none : Number(input.value);
    keep(item.key, item.texts.length ? [at - HALF, at + HALF] : [end(low, item.low), end(high, item.high)]);
  });
  fill();
}

function option(value, text) {
  const made = document.createElement("option");
  made.value = value;
  made.textContent = text;
  return made;
}
