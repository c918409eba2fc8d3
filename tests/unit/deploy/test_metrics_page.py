"""docs/reference/metrics.md has each metric of each service, and PromQL uses no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from prometheus_client.exposition import generate_latest

from gangline_alerts.core.policy.gauges import GAUGES
from gangline_service.telemetry import start
from gangline_tracker.app import COUNTERS

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "reference" / "metrics.md"
SOURCES = ("libs", "services", "worker/src", "cli/src")
OF_TABLES = {"libs/service/src/gangline_service/telemetry.py",  # it has no values
             "services/alerts/src/gangline_alerts/service/measuring.py",
             "services/tracker/src/gangline_tracker/app.py"}  # fmt: skip
NAME = re.compile(r"\b(?:gangline|process|target)_[a-z_]+\b")


def instruments() -> Iterator[tuple[str, str, str]]:
    """Kind, name and unit of each instrument that a source creates."""
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if ".create_" not in text:
                continue
            for node in ast.walk(ast.parse(text)):
                kind = getattr(getattr(node, "func", None), "attr", "")
                if isinstance(node, ast.Call) and kind in KINDS:
                    if not isinstance(node.args[0], ast.Constant):
                        assert str(path.relative_to(ROOT)) in OF_TABLES, path
                        continue
                    given = {word.arg: word.value for word in node.keywords}
                    unit = given.get("unit", node.args[1] if node.args[1:] else None)
                    found = unit.value if isinstance(unit, ast.Constant) else ""
                    yield KINDS[kind], str(node.args[0].value), str(found)


KINDS = {
    f"create_{observable}{kind}": kind
    for observable in ("", "observable_")
    for kind in ("counter", "gauge", "histogram", "up_down_counter")
}


@cache
def exported() -> frozenset[str]:
    """The names on /metrics, as the exporter itself writes them."""
    telemetry = start("test", "test")
    meter = telemetry.meter("test")
    made = [
        *instruments(),
        *(("gauge", name, "") for name in GAUGES),
        *(("counter", name, "") for name in COUNTERS),
    ]
    for kind, name, unit in made:
        if kind == "histogram":
            meter.create_histogram(name, unit).record(1)
        elif kind == "gauge":
            meter.create_gauge(name, unit).set(1)
        else:
            meter.create_counter(name, unit).add(1)
    text = generate_latest(telemetry.registry).decode()
    return frozenset(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE))


def base(name: str) -> str:
    """A histogram's series without their endings."""
    return re.sub(r"_(bucket|count|sum)$", "", name)


def test_the_page_has_each_metric_and_no_other() -> None:
    tables = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line[:3] == "| `"]
    documented = {name for line in tables for name in NAME.findall(line.split("|")[1])}
    assert documented == exported()
    assert len(documented) > 30


def test_rules_and_dashboards_use_metrics_that_there_are() -> None:
    for path in (
        *sorted((ROOT / "deploy" / "grafana" / "dashboards").glob("*.json")),
        ROOT / "deploy" / "prometheus" / "gangline.rules.yaml",
    ):
        found = re.findall(r'"?expr"?: (.*)', path.read_text(encoding="utf-8"))
        used = {base(name) for one in found for name in NAME.findall(one)}
        assert used <= exported(), (path, used - exported())
        if path.stem in {"cluster", "control-plane", "gangline.rules"}:
            assert used


def test_descriptions_are_on_metrics_for_who_reads_them_there() -> None:
    assert all(COUNTERS.values())
    assert all(GAUGES.values())
