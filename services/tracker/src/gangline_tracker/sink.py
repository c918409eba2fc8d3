"""ClickHouse as a pipeline's sink."""

from __future__ import annotations

import pyarrow as pa
from clickhouse_connect.driver.client import Client

from gangline_tracker.engine import insert
from gangline_tracker.ingest import Group


class ClickHouseSink:
    """Belongs to one thread, as its client does."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def positions(self, group: Group) -> dict[tuple[str, int], int]:
        """max(offset) + 1 of each partition; a projection answers, whatever the table's size."""
        topic = "topic" if group.table == "events" else f"'{group.topics[0].value}'"
        answer = self._client.query(
            f"SELECT {topic}, partition, max(offset) + 1 FROM gangline.{group.table} "  # noqa: S608
            "GROUP BY 1, partition"
        )
        return {(str(name), int(partition)): int(at) for name, partition, at in answer.result_rows}

    def insert(self, table: str, rows: pa.Table) -> None:
        """One atomic, acknowledged INSERT. Raises EngineUnavailable: outcome unknown."""
        insert(self._client, table, rows)
