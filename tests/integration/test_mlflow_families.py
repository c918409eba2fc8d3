"""The genuine MLflow has no family of routes that the gateway neither serves nor refuses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gangline_gateway.mlflow_routes import SERVED
from support.harnesses.genuine_mlflow import REFUSED, genuine_routes

pytest.importorskip("mlflow")


def test_the_families_are_those_of_the_genuine_server(tmp_path: Path) -> None:
    family = re.compile(r"/(?:ajax-)?api/[0-9.]+/mlflow/([^/<{]+)")
    matches = (family.match(path) for _, path in genuine_routes(tmp_path))
    assert {found[1] for found in matches if found} == SERVED | REFUSED
