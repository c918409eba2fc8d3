"""The gateway's own HTML pages: the form of sign_in.py, and a console that does not answer.

They need no other file, so they work when nothing else does.
"""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Mapping

from starlette.responses import HTMLResponse

STYLE = """
:root {
  color-scheme: light dark;
  --page: #f6f7f9; --card: #fff; --line: #d9dde3; --text: #1b1f24; --soft: #5b6470;
  --accent: #2f5bd7; --bad: #b3261e;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #101317; --card: #181c21; --line: #2c323a; --text: #e6e9ed; --soft: #9aa4b0;
    --accent: #7ea2ff; --bad: #ff8a80;
  }
}
* { box-sizing: border-box }
body {
  margin: 0; padding: 12vh 16px 16px; background: var(--page); color: var(--text);
  font: 15px/1.5 system-ui, sans-serif;
}
main {
  max-width: 400px; margin: 0 auto; padding: 24px; background: var(--card);
  border: 1px solid var(--line); border-radius: 8px;
}
h1 { margin: 0 0 16px; font-size: 20px; line-height: 28px }
p { margin: 16px 0 0; color: var(--soft) }
code { font: 13px ui-monospace, monospace; color: var(--text) }
label { display: block; font-weight: 600 }
input, button, a.button {
  display: block; width: 100%; margin-top: 8px; padding: 8px 12px; font: inherit;
  border: 1px solid var(--line); border-radius: 6px;
}
input { background: var(--page); color: inherit }
button, a.button {
  margin-top: 16px; text-align: center; text-decoration: none; background: var(--accent);
  border-color: var(--accent); color: var(--card); font-weight: 600; cursor: pointer;
}
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px }
.bad { margin: 0 0 16px; color: var(--bad) }
"""
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>{style}</style></head>
<body><main><h1>{title}</h1>
{body}
</main>{script}</body></html>"""


def plain_page(
    title: str,
    body: str,
    status: int = 200,
    *,
    script: str = "",
    headers: Mapping[str, str] | None = None,
) -> HTMLResponse:
    """A page. `body` is HTML; its texts must be escaped."""
    text = _PAGE.format(
        title=html.escape(title), style=STYLE, body=body,
        script=f"<script>{script}</script>" if script else "",
    )  # fmt: skip
    return HTMLResponse(text, status, headers={**plain_headers(script), **(headers or {})})


def plain_headers(script: str = "") -> dict[str, str]:
    """Headers for such pages: this script and no other may run, and no other site frames it."""
    scripts = f"script-src {_source(script)}; " if script else ""
    return {
        "content-security-policy": (
            f"default-src 'none'; {scripts}style-src {_source(STYLE)}; "
            "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
        ),
        "referrer-policy": "same-origin",
        "cache-control": "no-store",
    }


def _source(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
