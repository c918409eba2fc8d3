"""Each row of docs/guides/bad-days.md is shown by a test that is there."""

from __future__ import annotations

import re
from pathlib import Path

from gangline_worker.agent.config import AgentSettings

FOLDER = Path(__file__).parents[3] / "docs" / "guides"
PAGE = (FOLDER / "bad-days.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and "what goes" not in line]
LINK = re.compile(r"\]\(([^)#]+)#(test_\w+)\)")


def test_every_row_links_a_test_that_exists() -> None:
    assert len(ROWS) > 10
    for row in ROWS:
        links = LINK.findall(row.rsplit(" | ", 1)[1])
        assert links, row
        for path, name in links:
            text = (FOLDER / path).resolve().read_text(encoding="utf-8")
            assert f"def {name}(" in text, f"{path} has no {name}"


def test_every_bad_day_that_is_tested_is_told() -> None:
    told = {name for _, name in LINK.findall(PAGE)}
    tests = FOLDER.parents[1] / "tests" / "e2e" / "test_bad_days.py"
    done = set(re.findall(r"^def (test_\w+)\(", tests.read_text(encoding="utf-8"), re.MULTILINE))
    assert done <= told


def test_the_lease_is_what_the_page_says() -> None:
    settings = AgentSettings(store_url="file:///store")
    assert f"its lease ({settings.lease:.0f} s)" in PAGE
