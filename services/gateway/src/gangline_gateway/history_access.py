"""Access to history: runs queries on ClickHouse, or raises a 503 problem while it is away."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypeVar

import clickhouse_connect
import structlog
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError
from urllib3.exceptions import HTTPError

from gangline_bus.ports import TopicPartition
from gangline_bus.topics import TopicNames
from gangline_gateway.audit_trail import AuditTrail
from gangline_gateway.config import Settings
from gangline_gateway.curves import CurveError, CurveReader
from gangline_gateway.fair_slots import FairSlots
from gangline_gateway.filter_words import FilterError
from gangline_gateway.history import History
from gangline_gateway.incidents import Incidents
from gangline_gateway.problems import ProblemError, invalid, unavailable
from gangline_gateway.reports.source import Reports
from gangline_gateway.resources import ResourceReader
from gangline_gateway.run_points import PointReader
from gangline_gateway.sql_parts import CursorError, fetch
from gangline_gateway.user_limits import SharedSlots, current_user
from gangline_schemas.api.logs import BusEvent
from gangline_schemas.gpu_prices import GpuPrices

log = structlog.get_logger(__name__)
AnswerT = TypeVar("AnswerT")

QUERIES_AT_ONCE = 4
WAITING = 8
QUERIES_PER_USER = 4
_WAIT_S = 10.0
TABLES = frozenset({"steps", "logs"})


class Records:
    """Reads bus events of a job, and the offsets up to which tables are filled."""

    def __init__(self, client: Client, names: TopicNames) -> None:
        self._client = client
        self._names = names

    def positions(self, table: str, topic: str) -> dict[TopicPartition, int]:
        """The next offset of each partition that is not in the topic's table yet."""
        if table not in TABLES:
            raise ValueError(table)
        answer = self._client.query(
            f"SELECT partition, max(offset) + 1 FROM gangline.{table} GROUP BY partition"  # noqa: S608
        )
        return {TopicPartition(topic, int(p)): int(offset) for p, offset in answer.result_rows}

    def event_positions(self) -> dict[TopicPartition, int]:
        """The same for the table of events, for all its topics."""
        answer = self._client.query(
            "SELECT topic, partition, max(offset) + 1 FROM gangline.events "
            "GROUP BY topic, partition"
        )
        return {
            TopicPartition(f"{self._names.prefix}{topic}", int(p)): int(offset)
            for topic, p, offset in answer.result_rows
        }

    def events(
        self,
        subject: str,
        team: str,
        *,
        after: tuple[int, str, int, int] | None,
        limit: int,
        types: Sequence[str] = (),
    ) -> list[BusEvent]:
        """Events about a team's job in order, after (milliseconds, topic, partition, offset).

        Events that name another team are left out. `types`: only these; none given: all.
        """
        parameters: dict[str, Any] = {"subject": subject, "team": team, "size": limit}
        later = ""
        if after is not None:
            later = (
                "AND (time, topic, partition, offset) > (fromUnixTimestamp64Milli({ms:Int64}), "
                "{topic:String}, {partition:UInt32}, {offset:UInt64}) "
            )
            parameters |= dict(zip(("ms", "topic", "partition", "offset"), after, strict=True))
        if types:
            later += "AND type IN {types:Array(String)} "
            parameters["types"] = list(types)
        rows = fetch(
            self._client,
            "SELECT topic, partition, offset, id, type, source, subject, time, data "  # noqa: S608
            f"FROM gangline.events WHERE subject = {{subject:String}} "
            f"AND team IN ('', {{team:String}}) {later}"
            "ORDER BY time, topic, partition, offset LIMIT {size:UInt32}",
            parameters,
        )
        return [BusEvent(**{**row, "data": json.loads(row["data"])}) for row in rows]


@dataclass(frozen=True)
class Queries:
    """The query classes of one thread, which share a client."""

    history: History
    curves: CurveReader
    records: Records
    reports: Reports
    incidents: Incidents
    points: PointReader
    resources: ResourceReader
    audit: AuditTrail


class HistoryAccess:
    """Runs queries from any thread; each thread has its own client.

    Running and waiting queries are limited in total and per user: other routes need the threads.
    Of those that run, one user has at most all but one.
    """

    def __init__(self, connect: Callable[[], Queries] | None) -> None:
        self._connect = connect
        self._own = threading.local()
        self._slots = FairSlots(QUERIES_AT_ONCE)
        self._places = SharedSlots(
            QUERIES_AT_ONCE + WAITING, QUERIES_PER_USER, "history queries", code="history-busy"
        )

    def query(self, query: Callable[[Queries], AnswerT]) -> AnswerT:
        """The answer; blocks. Raises a 503 problem while ClickHouse is away or busy, or 429."""
        if self._connect is None:
            raise unavailable("history-away", "no ClickHouse is configured: set clickhouse_url")
        with self._places.hold(), ExitStack() as slot:
            try:
                slot.enter_context(self._slots.hold(current_user.get(), _WAIT_S))
            except TimeoutError:
                raise self._places.busy() from None
            return self._query(self._connect, query)

    def _query(
        self, connect: Callable[[], Queries], query: Callable[[Queries], AnswerT]
    ) -> AnswerT:
        try:
            queries = getattr(self._own, "queries", None)
            if queries is None:
                queries = self._own.queries = connect()
            return query(queries)
        except CursorError as error:
            raise invalid("cursor", str(error).removeprefix("cursor ")) from None
        except (CurveError, FilterError) as error:
            raise invalid(error.field, str(error)) from None
        except (ClickHouseError, HTTPError, OSError) as error:
            self._own.queries = None
            raise _away(error) from None


def connector(settings: Settings, names: TopicNames) -> Callable[[], Queries] | None:
    """Makes the clients of `HistoryAccess`; None if no ClickHouse is configured."""
    url, token = settings.clickhouse_url, settings.service_token
    if url is None:
        return None

    prices = GpuPrices.of(settings.gpu_prices)

    def connect() -> Queries:
        client = clickhouse_connect.get_client(
            dsn=url,
            username=settings.clickhouse_user,
            password=token.get_secret_value() if token is not None else "",
            autogenerate_session_id=False,
            connect_timeout=2,
            send_receive_timeout=30,
            query_retries=0,
        )
        return Queries(
            History(client, prices),
            CurveReader(client),
            Records(client, names),
            Reports(client, prices),
            Incidents(client),
            PointReader(client),
            ResourceReader(client, prices),
            AuditTrail(client),
        )

    return connect


def _away(error: Exception) -> ProblemError:
    log.warning("ClickHouse did not answer", error=type(error).__name__, detail=str(error)[:300])
    return unavailable(
        "history-away",
        "ClickHouse does not answer, so history is unavailable; live routes still work",
    )
