"""The report of the step compare as a page without scripts: scores, curves and costs."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_WIDTH, _HEIGHT = 640, 240
_COLORS = {"candidate": "#0b62d6", "baseline": "#8a5a00"}
_STYLE = (
    "body{font:16px system-ui;margin:2rem}td,th{padding:.3rem .8rem;text-align:right}"
    "td:first-child,th:first-child{text-align:left}"
)
_COSTS = {
    "rank_hours": ("Training, GPU-hours (one rank each)", 1.0, "{:,.3f}"),
    "size_bytes": ("Size, MB", 1e6, "{:,.1f}"),
    "memory_bytes": ("Memory, MB", 1e6, "{:,.1f}"),
    "load_s": ("Load time, s", 1.0, "{:,.3f}"),
    "p99_ms_batch_1": ("P99 latency of 1, ms", 1.0, "{:,.2f}"),
    "p99_ms_batch_8": ("P99 latency of 8, ms", 1.0, "{:,.2f}"),
}
Curve = Sequence[Sequence[float]]


def page(report: Mapping[str, Any]) -> str:
    """The page of a report, as `report.json` has it."""
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>Candidate and baseline</title>"
        f"<style>{_STYLE}</style><h1>Candidate and baseline</h1>"
        f"{_suites(report['suites'])}{''.join(_curves(report['curves']))}{_costs(report['costs'])}"
        "\n"
    )


def word(one: Mapping[str, Any]) -> str:
    """The finding of a suite, by its interval."""
    if one["low"] > 0:
        return "better"
    return "worse" if one["high"] < 0 else "no difference found"


def _suites(suites: Mapping[str, Mapping[str, Any]]) -> str:
    rows = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{one['items']:,}</td>"
        f"<td>{one['candidate']:.4f}</td><td>{one['baseline']:.4f}</td>"
        f"<td>{one['difference']:+.4f}</td><td>{one['low']:+.4f} to {one['high']:+.4f}</td>"
        f"<td>{one['wins']:,} / {one['losses']:,}</td><td>{word(one)}</td></tr>"
        for name, one in suites.items()
    )
    return (
        "<table><tr><th>Suite<th>Items<th>Candidate<th>Baseline<th>Difference<th>95 % interval"
        f"<th>Better / worse<th>Finding</tr>{rows}</table>"
    )


def _curves(curves: Mapping[str, Mapping[str, Curve]]) -> Iterator[str]:
    """A picture for each metric of which there is a curve."""
    names = sorted({name for held in curves.values() for name in held})
    for name in names:
        of = {who: held[name] for who, held in curves.items() if name in held}
        steps = [step for curve in of.values() for step, _ in curve]
        values = [value for curve in of.values() for _, value in curve]
        left, right, low, high = min(steps), max(steps), min(values), max(values)
        lines = "".join(
            f"<polyline fill=none stroke-width=2 stroke='{_COLORS[who]}' points='"
            + " ".join(
                f"{_at(step, left, right, _WIDTH):.1f},"
                f"{_HEIGHT - _at(value, low, high, _HEIGHT):.1f}"
                for step, value in curve
            )
            + "'/>"
            for who, curve in of.items()
        )
        shown = ", ".join(
            f"<span style='color:{_COLORS[who]}'>{who}</span> {curve[-1][1]:.4f}"
            for who, curve in of.items()
        )
        yield (
            f"<h2>{html.escape(name)}</h2><p>At the end: {shown}. Steps {left:g} to {right:g}, "
            f"values {low:.4g} to {high:.4g}.</p><svg role=img aria-label='{html.escape(name)}' "
            f"viewBox='0 0 {_WIDTH} {_HEIGHT}' width={_WIDTH} height={_HEIGHT}>{lines}</svg>"
        )


def _at(value: float, low: float, high: float, size: int) -> float:
    return size * (value - low) / (high - low) if high > low else size / 2


def _costs(costs: Mapping[str, Mapping[str, float]]) -> str:
    if not costs:
        return ""
    heads = "".join(f"<th>{who.capitalize()}" for who in costs)
    rows = ""
    for name, (title, unit, form) in _COSTS.items():
        if any(name in held for held in costs.values()):
            cells = "".join(
                f"<td>{form.format(held[name] / unit)}</td>" if name in held else "<td>-</td>"
                for held in costs.values()
            )
            rows += f"<tr><td>{title}</td>{cells}</tr>"
    return f"<h2>Cost</h2><table><tr><th>{heads}</tr>{rows}</table>"
