"""Processes of a running platform: /metrics has what its page says, and readers yield."""

from __future__ import annotations

import json
import os
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


def test_what_only_reads_yields_to_what_decides(platform: RunningPlatform) -> None:
    names = ("tracker-0", "live-view-0", "scheduler-0", "gateway-0", "node-0")
    found = {name: os.getpriority(os.PRIO_PROCESS, platform.pid(name)) for name in names}
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert {found.pop("tracker-0"), found.pop("live-view-0")} == {min(19, own + 5)}
    assert set(found.values()) == {own}
