// Parts of a page that the server makes again; it escapes their texts, and scripts in them never run.

/**
 * The page as the server makes it now; null while it does not answer, or the page is hidden.
 * The document's event `again` says whether it answered.
 */
export async function readAgain() {
  if (document.hidden) return null;
  const answer = await fetch(location.href).catch(() => null);
  document.dispatchEvent(new CustomEvent("again", { detail: { successful: Boolean(answer?.ok) } }));
  return answer?.ok ? answer.text() : null;
}

/**
 * Put a part of fresh HTML in place of the one with the same id. Opened details stay open, and the
 * focus stays on the same link or control. Returns the new element.
 */
export function replacePart(id, html) {
  const before = document.getElementById(id);
  const fresh = new DOMParser().parseFromString(html, "text/html").getElementById(id);
  if (!fresh) return before;
  for (const item of before.querySelectorAll("details[id]")) {
    const same = fresh.querySelector(`#${CSS.escape(item.id)}`);
    if (same) same.open = item.open;
  }
  const focus = before.contains(document.activeElement) ? document.activeElement : null;
  before.replaceWith(document.adoptNode(fresh));
  const href = focus?.getAttribute("href");
  const same = focus?.id ? document.getElementById(focus.id)
    : href ? fresh.querySelector(`a[href="${CSS.escape(href)}"]`) : null;
  same?.focus({ preventScroll: true });
  return fresh;
}
