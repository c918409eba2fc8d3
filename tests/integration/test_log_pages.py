"""Logs are read in the order in which the table holds them: a page costs a page."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from clickhouse_connect.driver.client import Client

from gangline_gateway.history import History
from gangline_gateway.log_pages import LogFilter
from gangline_schemas.api.logs import LogLine
from gangline_tracker.engine import Engine
from gangline_tracker.migrate import migrate

BIG = LogFilter("big", "nlp")
BASE_MS = 1_767_225_600_000
RANKS, LINES = 32, 200_000


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A database with 200,000 lines of 32 ranks, the last ones twice."""
    client = Engine(f"chdb://{tmp_path_factory.mktemp('db')}").client()
    try:
        migrate(client)
        fill(client, "big", "nlp", LINES)
        fill(client, "big", "vision", 100)
        client.command(
            "INSERT INTO gangline.logs SELECT * FROM gangline.logs "
            f"WHERE team = 'nlp' AND offset >= {LINES - 300}"
        )
        client.command("INSERT INTO gangline.logs SELECT * REPLACE (99 AS rank) FROM gangline.logs "
                       "WHERE team = 'nlp' AND offset = 150000")  # fmt: skip
        yield client
    finally:
        client.close()


def fill(client: Client, job: str, team: str, lines: int) -> None:
    client.command(
        f"INSERT INTO gangline.logs SELECT '{team}', '{job}', 1, number % {RANKS}, 'n', "
        f"intDiv(number, {RANKS}), fromUnixTimestamp64Milli(toInt64({BASE_MS} + 3 * number)), "
        "'stdout', toString(number), 0, number, toDateTime('2026-01-01 00:00:00') "
        f"FROM numbers({lines})"
    )


def all_pages(history: History, wanted: LogFilter, limit: int, most: int) -> list[LogLine]:
    lines: list[LogLine] = []
    page = history.logs(wanted, limit=limit)
    while page.lines and len(lines) < most:
        lines += page.lines
        page = history.logs(wanted, limit=limit, cursor=page.cursor)
    return lines


def plan_of(client: Client, ask: Callable[[History], object]) -> str:
    """How the engine reads the first query of a question."""
    asked: list[tuple[str, Any]] = []

    class Noting:
        def query(self, sql: str, parameters: Any, **how: Any) -> Any:
            asked.append((sql, parameters))
            return client.query(sql, parameters=parameters, **how)

    ask(History(cast("Client", Noting())))
    sql, parameters = asked[0]
    found = client.query(f"EXPLAIN indexes = 1, actions = 1 {sql}", parameters=parameters)
    return "\n".join(row[0] for row in found.result_rows)


def granules(plan: str) -> list[tuple[int, int]]:
    """How many the index chose, of how many: for each index in turn."""
    return [(int(a), int(b)) for a, b in re.findall(r"Granules: (\d+)/(\d+)", plan)]


def test_pages_give_each_line_once_in_order_of_time(client: Client) -> None:
    history = History(client)
    lines = all_pages(history, LogFilter("big", "nlp", rank=3), 1000, LINES)
    assert [line.line for line in lines] == list(range(LINES // RANKS))
    first = all_pages(history, BIG, 777, 5000)
    assert [int(line.text) for line in first] == list(range(len(first)))


def test_the_last_lines_come_once_too(client: Client) -> None:
    history = History(client)

    def tail(wanted: LogFilter, count: int) -> list[LogLine]:
        return history.logs(wanted, limit=count, tail=True).lines

    last = tail(BIG, 500)
    assert [int(line.text) for line in last] == list(range(LINES - 500, LINES))
    rare = tail(LogFilter("big", "nlp", rank=99), 500)
    assert [line.text for line in rare] == ["150000"]
    assert tail(LogFilter("big", "nlp", attempt=2), 5) == []


@pytest.mark.parametrize("wanted", [BIG, LogFilter("big", "nlp", rank=3)])
def test_a_page_is_read_in_the_tables_order_from_its_cursor_on(
    client: Client, wanted: LogFilter
) -> None:
    """So the engine stops after a page: it neither sorts nor reads what comes before or after."""
    first = plan_of(client, lambda history: history.logs(wanted))
    last = plan_of(client, lambda history: history.logs(wanted, tail=True))
    assert "Read type: InOrder" in first
    assert "Read type: InReverseOrder" in last
    late = f"1.{BASE_MS + 3 * (LINES - 1000)}.0.3000"
    page = plan_of(client, lambda history: history.logs(wanted, cursor=late))
    assert "Read type: InOrder" in page
    assert min(chosen for chosen, _ in granules(page)) <= 2
    assert max(of for _, of in granules(page)) > 20


def test_lines_of_a_rank_that_wrote_little_are_found_by_index(client: Client) -> None:
    plan = plan_of(client, lambda history: history.logs(LogFilter("big", "nlp", rank=99)))
    assert min(chosen for chosen, _ in granules(plan)) <= 2


def test_lines_that_look_like_errors_are_found_by_index(client: Client) -> None:
    plan = plan_of(client, lambda history: history.logs(LogFilter("big", "nlp", errors=True)))
    assert "Name: errors" in plan
    assert min(chosen for chosen, _ in granules(plan)) == 0


def test_pages_go_backwards_from_the_first_line_of_a_page(client: Client) -> None:
    history = History(client)
    page = history.logs(BIG, limit=300, tail=True)
    before = history.logs(BIG, limit=300, tail=True, cursor=page.start)
    found = [int(line.text) for line in before.lines + page.lines]
    assert found == list(range(LINES - 600, LINES))


def test_lines_are_found_by_their_text(client: Client) -> None:
    history = History(client)
    client.command(
        "INSERT INTO gangline.logs SELECT * REPLACE ('sick' AS job_id, "
        "if(line % 2 = 0, 'CUDA Error: 7', 'fine') AS text) "
        "FROM gangline.logs WHERE team = 'vision' AND rank = 3"
    )
    wanted = LogFilter("sick", "vision", contains="cuda error")
    assert {line.text for line in history.logs(wanted).lines} == {"CUDA Error: 7"}
    errors = history.logs(LogFilter("sick", "vision", errors=True)).lines
    assert [line.line for line in errors] == [0, 2]
    assert all(wanted.takes_line(line.text) for line in errors)
    assert not wanted.takes_line("fine")


def test_the_last_line_of_each_rank(client: Client) -> None:
    found = History(client).last_lines(("big", "nlp"), 1, (3, 5))
    last = LINES // RANKS - 1
    assert {rank: line.line for rank, line in found.items()} == {3: last, 4: last}
    assert int(found[3].text) == last * RANKS + 3
