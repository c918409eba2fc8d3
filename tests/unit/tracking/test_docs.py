"""The examples of docs/reference/sdk.md about tracking, against the small server."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import gangline
from support.fakes.tracking_server import TrackingStub

HEAVY = {"torch", "mlflow", "numpy", "typer", "matplotlib", "confluent_kafka"}
PAGE = Path(__file__).parents[3] / "docs" / "reference" / "sdk.md"


def test_the_examples(
    server: TrackingStub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("x")
    section = PAGE.read_text(encoding="utf-8").split("## Jobs and the cluster")[0]
    examples = re.findall(r"```python\n(.+?)```", section, re.DOTALL)
    assert len(examples) == 3
    for example in examples:
        exec(compile(example, PAGE.name, "exec"), {"gangline": gangline})
    gangline.finish()
    first, second = server.runs.values()
    assert (len(first.steps("loss")), first.steps("eval/accuracy")[-1]) == (100, (100, 1.0))
    assert first.params == {"lr": "0.0003", "net/depth": "12"}
    assert second.steps("loss")[-1] == (100, 1e-5)
    assert len(server.files) == 1
    assert len([*kept.glob("*/run.json")]) == 1


def test_the_sdk_is_light() -> None:
    code = "import sys, gangline; gangline.init; print(*sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(ended.stdout.split())
    assert "gangline.tracking.start" in loaded
    assert not HEAVY & loaded
