"""A comparison of runs as one HTML page, without scripts or resources to fetch."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from gangline.commands.compare import differing, letters, outcomes
from gangline.errors import CliError
from gangline.page_style import STYLE, html_table
from gangline.plot import svg_of
from gangline_schemas.api.runs import Axis, Comparison

_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Gangline: comparison of runs</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>{style}</style>
<h1>Comparison of runs</h1>
<p>{made}</p>
<section class="texts"><h2>Runs</h2>{runs}</section>
<section><h2>Curves</h2>{picture}</section>
<section><h2>Outcome</h2>{outcome}</section>
<section><h2>Configuration: what differs</h2>{differing}</section>
</html>
"""


def write_page(
    found: Comparison, metrics: Sequence[str], axis: Axis, path: Path, now: datetime
) -> None:
    """Write the page with a diagram for each metric. Raises CliError."""
    names = letters(len(found.runs))
    page = _PAGE.format(
        style=STYLE,
        made=f"{now:%Y-%m-%d %H:%M} UTC",
        runs=html_table(
            ["", "Run", "Name", "User"],
            [
                (name, [run.run_id, run.name, run.user])
                for name, run in zip(names, found.runs, strict=True)
            ],
        ),
        outcome=html_table(["", *names], outcomes(found)),
        differing=html_table(["Field", *names], differing(found)),
        picture=svg_of(found, metrics, axis),
    )
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise CliError(f"cannot write {path}: {error.strerror}") from None
