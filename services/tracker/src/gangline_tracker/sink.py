"""ClickHouse as a pipeline's sink."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import OperationalError

from gangline_tracker.engine import EngineUnavailable
from gangline_tracker.ingest import Group

INSERT_SETTINGS = {
    # An acknowledged insert is in the table; chDB's default is to answer before.
    "async_insert": 0,
    "wait_for_async_insert": 1,
    # One block per INSERT, however large: it is one part, there whole or not at all.
    "max_insert_block_size": 1_000_000_000,
    "min_insert_block_size_rows": 1_000_000_000,
    "min_insert_block_size_bytes": 0,
    "max_insert_threads": 1,
    "max_execution_time": 60,
}
_RUNS_AT_ONCE = 1000
"""Parameters stand in the address of a request, whose length is limited."""


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
        block, settings = rows.combine_chunks(), dict(INSERT_SETTINGS)
        try:
            self._client.insert_arrow(table, block, database="gangline", settings=settings)
        except OperationalError as error:
            raise EngineUnavailable(f"the INSERT into {table} was not acknowledged") from error

    def remove(self, table: str, run_ids: Sequence[str]) -> None:
        """A mutation: the engine has noted it, and rewrites the parts that hold such rows.

        Rows that are inserted later stay. Raises EngineUnavailable: outcome unknown.
        """
        try:
            for first in range(0, len(run_ids), _RUNS_AT_ONCE):
                self._client.command(
                    f"ALTER TABLE gangline.{table} DELETE WHERE run_id IN {{runs:Array(String)}}",
                    parameters={"runs": list(run_ids[first : first + _RUNS_AT_ONCE])},
                )
        except OperationalError as error:
            raise EngineUnavailable(f"the removal from {table} was not acknowledged") from error
