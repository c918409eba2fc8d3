// A form of many checkboxes that a text narrows down.

/** Binds the form's `input.narrow` to the labels of its fieldsets. */
export function narrowed(form) {
  const box = form?.querySelector("input.narrow");
  if (!box) return;
  box.addEventListener("keydown", (event) => { if (event.key === "Enter") event.preventDefault(); });
  box.addEventListener("input", () => {
    const text = box.value.trim().toLowerCase();
    for (const label of form.querySelectorAll("fieldset label")) {
      label.hidden = !label.textContent.toLowerCase().includes(text);
    }
  });
}
