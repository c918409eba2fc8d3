"""Templates: autoescaped Jinja with filters for times, durations, sizes and numbers."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from gangline_console import formats
from gangline_console.assets import PACKAGE, Assets
from gangline_console.ordering import next_order

STATES: dict[str, tuple[str, str]] = {
    "pending": ("wait", "◌"),
    "scheduled": ("wait", "◔"),
    "initializing": ("busy", "◑"),
    "running": ("run", "▶"),
    "checkpointing": ("busy", "↓"),
    "preempted": ("warn", "‖"),
    "succeeded": ("good", "✓"),
    "failed": ("bad", "✕"),
    "cancelled": ("off", "⊘"),
    "rejected": ("bad", "⊗"),
}
"""Kind and icon of each state of a job; the kind has a colour in console.css."""
OUTCOMES: dict[str, tuple[str, str]] = {
    "open": ("warn", "◌"),
    "recovered": ("good", "✓"),
    "failed_again": ("bad", "↻"),
    "job_failed": ("bad", "✕"),
    "job_ended": ("off", "■"),
}
"""The same of each outcome of an incident."""
SEVERITIES: dict[str, tuple[str, str]] = {
    "info": ("run", "i"),
    "warning": ("warn", "!"),
    "critical": ("bad", "‼"),
}
"""The same of each severity of an alert."""


def environment(assets: Assets, package: Path = PACKAGE) -> Environment:
    """The environment of all templates; pages are `NAME/page.html`."""
    made = Environment(
        loader=FileSystemLoader([package / "templates", package / "pages"]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters |= {
        "number": formats.number,
        "percent": formats.percent,
        "shortened": formats.shortened,
        "size": formats.size,
        "duration": formats.duration,
        "gpu_time": formats.gpu_time,
        "plain": formats.plain,
        "coded": coded,
        "time": time_tag,
        "query": query,
        "next_order": next_order,
    }
    made.globals |= {
        "static": assets.url,
        "STATES": STATES,
        "OUTCOMES": OUTCOMES,
        "SEVERITIES": SEVERITIES,
        "NONE": formats.NONE,
        "once": lambda: secrets.token_urlsafe(16),
    }
    return made


def time_tag(moment: datetime | None, now: datetime | None = None) -> Markup | str:
    """A relative time whose exact one shows on hover; the browser keeps it current."""
    if moment is None:
        return formats.NONE
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        moment.astimezone(UTC).isoformat(),
        formats.exact(moment),
        formats.relative(moment, now or datetime.now(UTC)),
    )


def coded(text: str) -> Markup:
    """The text with its `commands` as code."""
    pieces = text.split("`")
    if len(pieces) % 2 == 0:  # a backtick without its second one
        return escape(text)
    marked = ("<code>{}</code>" if at % 2 else "{}" for at in range(len(pieces)))
    return Markup("").join(
        Markup(form).format(piece)  # noqa: S704 - one of the two forms above
        for form, piece in zip(marked, pieces, strict=True)
    )


def query(values: dict[str, Any], **changes: Any) -> str:
    """A query string of these values with changes; None and empty ones are left out."""
    wanted = {name: value for name, value in {**values, **changes}.items() if value not in _UNSET}
    return f"?{urlencode(wanted, doseq=True)}" if wanted else ""


_UNSET: tuple[Any, ...] = (None, "", [], ())
