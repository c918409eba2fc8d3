"""A comparison of runs as one HTML page, without scripts or resources to fetch."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from html import escape
from pathlib import Path

from gangline.commands.compare import Row, differing, letters, outcomes
from gangline.errors import CliError
from gangline.plot import svg_of
from gangline_schemas.api.runs import Axis, Comparison

_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Gangline: comparison of runs</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 64rem }}
div {{ overflow-x: auto }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums }}
th, td {{ border-bottom: 1px solid #8886; padding: .3rem .75rem; text-align: right;
  max-width: 22rem; overflow-wrap: anywhere; vertical-align: top }}
th:first-child, td:first-child, .texts th, .texts td {{ text-align: left; white-space: pre }}
svg {{ max-width: 100%; height: auto }}
</style>
<h1>Comparison of runs</h1>
<p>{made}</p>
<h2>Runs</h2><div class="texts">{runs}</div>
<h2>Curves</h2>{picture}
<h2>Outcome</h2>{outcome}
<h2>Configuration: what differs</h2>{differing}
</html>
"""


def write_page(
    found: Comparison, metrics: Sequence[str], axis: Axis, path: Path, now: datetime
) -> None:
    """Write the page with a diagram for each metric. Raises CliError."""
    names = letters(len(found.runs))
    page = _PAGE.format(
        made=f"{now:%Y-%m-%d %H:%M} UTC",
        runs=_table(
            ["", "Run", "Name", "User"],
            [
                (name, [run.run_id, run.name, run.user])
                for name, run in zip(names, found.runs, strict=True)
            ],
        ),
        outcome=_table(["", *names], outcomes(found)),
        differing=_table(["Field", *names], differing(found)),
        picture=svg_of(found, metrics, axis),
    )
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise CliError(f"cannot write {path}: {error.strerror}") from None


def _table(heads: Sequence[str], rows: Sequence[Row]) -> str:
    if not rows:
        return "<p>nothing</p>"
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in (label, *cells)) + "</tr>"
        for label, cells in rows
    )
    return f"<div><table><tr>{head}</tr>{body}</table></div>"
