"""The examples that can be submitted from a browser: job files without a folder of their own."""

from __future__ import annotations

from functools import cache
from pathlib import Path

_PACKAGED = Path(__file__).parent / "example_files"
_CHECKOUT = Path(__file__).parents[6] / "examples"
"""In a checkout; a wheel has them in the package."""


@cache
def examples() -> dict[str, str]:
    """Texts by name, in the order of names; empty where the package has none."""
    folder = _PACKAGED if _PACKAGED.is_dir() else _CHECKOUT
    return {path.stem: path.read_text("utf-8") for path in sorted(folder.glob("*.yaml"))}


def summary(text: str) -> str:
    """The first sentence of a file's comment."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("#") or not line[1:].strip():
            break
        lines.append(line[1:].strip())
    return " ".join(lines).split(". ")[0].rstrip(".")
