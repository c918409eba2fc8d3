"""Removals name a bounded number of runs each."""

from __future__ import annotations

from typing import Any, cast

from clickhouse_connect.driver.client import Client

from gangline_tracker.sink import ClickHouseSink

RUNS = [f"{number:032x}" for number in range(2_500)]


class Commands:
    """A client that notes what it is asked."""

    def __init__(self) -> None:
        self.removed: list[list[str]] = []

    def command(self, sql: str, parameters: dict[str, Any]) -> None:
        assert sql.startswith("ALTER TABLE gangline.metric_points DELETE")
        self.removed.append(parameters["runs"])


def test_many_removed_runs_are_named_in_several_statements() -> None:
    client = Commands()
    ClickHouseSink(cast("Client", client)).remove("metric_points", RUNS)
    assert [run for runs in client.removed for run in runs] == RUNS
    assert max(map(len, client.removed)) == 1_000
