"""The chart and the install guide start all parts of the platform."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from gangline.local.platform import PARTS

ROOT = Path(__file__).parents[3]
BESIDE_THE_GATEWAY = {"gateway", "mlflow", "console"}
"""Parts that templates/gateway.yaml of the chart has."""


def test_the_chart_has_a_deployment_of_each_part() -> None:
    values = yaml.safe_load((ROOT / "deploy/helm/gangline/values.yaml").read_text("utf-8"))
    found = {name: service["module"] for name, service in values["services"].items()}
    gateway = (ROOT / "deploy/helm/gangline/templates/gateway.yaml").read_text("utf-8")
    assert found == {name: PARTS[name] for name in PARTS.keys() - BESIDE_THE_GATEWAY}
    assert "gangline_gateway]" in gateway
    assert "gangline_console]" in gateway
    assert '"gangline.mlflow"' in gateway


def test_the_install_guide_enables_the_unit_of_each_part() -> None:
    guide = (ROOT / "docs/guides/install.md").read_text("utf-8")
    loop = re.search(r"for part in ([^;]*); do\n  systemctl enable", guide)
    assert loop is not None
    assert set(loop[1].replace("\\", " ").split()) == set(PARTS)
