"""The decider of docs/concepts/deciders.md works as the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from gangline_schemas.events.workers import NodeJoined
from support.builders.scheduler import node
from support.harnesses.decider_run import DeciderRun

PAGE = Path(__file__).parents[3] / "docs" / "concepts" / "deciders.md"


def example() -> dict[str, Any]:
    """The names that the files of the page define, read as one module."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 3
    names: dict[str, Any] = {"__name__": "watcher"}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec", dont_inherit=True), names)
    return names


def test_the_decider_of_the_page_decides_once_and_replays() -> None:
    names = example()
    run = DeciderRun(names["Watcher"](), names["fingerprint"])
    joined = NodeJoined(node=node("n1"))
    assert [event.type for event in run.feed(joined)] == ["node.watched"]
    assert run.feed(joined) == []
    lived = run.fingerprint(run.state)
    run.take_over()
    assert run.fingerprint(run.state) == lived
    assert run.state.nodes == {"n1": joined.node.incarnation}
