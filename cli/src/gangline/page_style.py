"""The style of pages that stand alone in a file, in the console's colours, and their tables."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

STYLE = """
:root {
  color-scheme: light dark; --bg: #f7f8fa; --surface: #fff; --line: #dfe3ea;
  --text: #1a1f29; --dim: #586174;
}
@media (prefers-color-scheme: dark) {
  :root {
    --bg: #0f1218; --surface: #161a22; --line: #2a303c;
    --text: #e6e9ef; --dim: #9aa4b6;
  }
}
body {
  font: 14px/20px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; margin: 0 auto;
  max-width: 64rem; padding: 24px 16px 48px; background: var(--bg); color: var(--text);
}
h1 { font-size: 20px; line-height: 28px; margin: 0 0 4px }
h2 { font-size: 15px; margin: 0 0 8px }
p { margin: 0 0 16px; color: var(--dim) }
section {
  margin: 0 0 16px; padding: 16px; background: var(--surface); border: 1px solid var(--line);
  border-radius: 6px; overflow-x: auto;
}
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td {
  border-bottom: 1px solid var(--line); padding: 4px 12px; text-align: right;
  max-width: 22rem; overflow-wrap: anywhere; vertical-align: top;
}
th { color: var(--dim); font-weight: 600 }
th:first-child, td:first-child, .texts th, .texts td { text-align: left }
.texts th, .texts td { white-space: pre }
img, svg { max-width: 100%; height: auto }
img { background: #fff; border-radius: 6px }
"""


def html_table(heads: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]]) -> str:
    """A table with a label and cells in each row; all texts are escaped."""
    if not rows:
        return "<p>nothing</p>"
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in (label, *cells)) + "</tr>"
        for label, cells in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"
