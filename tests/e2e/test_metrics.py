"""/metrics of each process of a running platform has what its reference page says."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path

from support.fixtures.platform import RunningPlatform

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
NAME = re.compile(r"\b(?:gangline|process|target)_[a-z_]+\b")
DECIDERS = {
    "scheduler", "quota", "fault-manager", "checkpoint-service", "alerts", "studies", "pipelines",
    "registry",
}  # fmt: skip


def test_each_process_shows_documented_metrics(platform: RunningPlatform) -> None:
    documented = set(NAME.findall(PAGE.read_text(encoding="utf-8")))
    files = sorted((platform.data_dir / "run" / "health").glob("*.json"))
    leads = {}
    for path in files:
        url = json.loads(path.read_text(encoding="utf-8"))["url"]
        with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        shown = set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE))
        assert "process_cpu_seconds_total" in shown, path.stem
        assert {name for name in shown if NAME.fullmatch(name)} <= documented, path.stem
        if found := re.search(r"^gangline_decider_shards(?:\{.*\})? (\S+)$", text, re.MULTILINE):
            leads[path.stem.removesuffix("-0")] = float(found[1])
        if path.stem.removesuffix("-0") in DECIDERS:
            assert "gangline_decider_events_total" in text
    assert leads == dict.fromkeys(DECIDERS, 1.0)
    assert len(files) > len(DECIDERS) + 2
