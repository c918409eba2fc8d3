"""What outside SQL may and may not do. The engine itself is asked in the integration tests."""

from __future__ import annotations

from typing import Any

import pytest
from sqlglot import exp

from gangline_gateway.log_pages import LogFilter, log_page
from gangline_tracker.sql_guard import MAX_CHARS, SqlRefused, engine_filters, guard

MINE = frozenset({"nlp"})

ATTACKS = [
    # files, networks, programs, other databases
    "SELECT * FROM file('/etc/passwd', 'CSV', 'a String')",
    "SELECT * FROM gangline.steps WHERE name IN (SELECT * FROM file('/etc/passwd'))",
    "SELECT 1 WHERE 'x' IN (file('/etc/passwd'))",
    "SELECT file('/etc/passwd')",
    "SELECT * FROM url('http://127.0.0.1/', 'CSV', 'a String')",
    "SELECT * FROM s3('http://x/y.csv')",
    "SELECT * FROM s3Cluster('c', 'http://x/y.csv')",
    "SELECT * FROM remote('127.0.0.1', gangline.steps)",
    "SELECT * FROM remoteSecure('127.0.0.1', gangline, steps)",
    "SELECT * FROM cluster('default', gangline.steps)",
    "SELECT * FROM mysql('h:3306', 'd', 't', 'u', 'p')",
    "SELECT * FROM postgresql('h:5432', 'd', 't', 'u', 'p')",
    "SELECT * FROM executable('id', TSV, 'a String')",
    "SELECT * FROM hdfs('hdfs://h/f')",
    "SELECT * FROM sqlite('/x.db', 't')",
    "SELECT * FROM merge('gangline', '.*')",
    "SELECT * FROM merge(REGEXP('.*'), 'steps')",
    "SELECT * FROM view(SELECT * FROM gangline.steps)",
    "SELECT * FROM numbers(1000000000000)",
    "SELECT * FROM zeros(1000000000000)",
    "SELECT * FROM generateRandom('a UInt8')",
    "SELECT * FROM generate_series(1, 10000000000)",
    "SELECT * FROM input('a String')",
    "SELECT * FROM null('a String')",
    "SELECT * FROM values('a String', 'x')",
    "SELECT * FROM format(CSV, '1,2')",
    "SELECT * FROM loop(gangline.steps)",
    "SELECT * FROM dictionary('d')",
    "SELECT * FROM mergeTreeIndex(gangline, steps)",
    "SELECT * FROM python('x')",
    "SELECT * FROM Python(secret)",
    "SELECT * FROM system.processes",
    "SELECT * FROM system.query_log",
    "SELECT * FROM system.users",
    "SELECT * FROM information_schema.tables",
    "SELECT * FROM default.anything",
    "SELECT * FROM other.gangline.steps",
    "SELECT * FROM `/etc/passwd`",
    "SELECT * FROM '/etc/passwd'",
    # functions that read, wait or tell
    "SELECT dictGet('d', 'a', 1)",
    "SELECT dictGetOrDefault('d', 'a', 1, 2)",
    "SELECT dictHas('d', 1)",
    "SELECT joinGet('gangline.steps', 'team', 'x')",
    "SELECT hasColumnInTable('gangline', 'steps', 'team')",
    "SELECT sleep(3)",
    "SELECT sleepEachRow(1) FROM gangline.steps",
    "SELECT getSetting('readonly')",
    "SELECT getMacro('shard')",
    "SELECT hostName()",
    "SELECT catboostEvaluate('/m', 1)",
    "SELECT addressToLine(1)",
    "SELECT filesystemAvailable()",
    "SELECT initializeAggregation('sum', 1)",
    "SELECT \"file\"('/etc/passwd')",
    "SELECT `sleep`(3)",
    "SELECT in(1, gangline.steps)",
    "SELECT globalIn(1, gangline.steps)",
    "SELECT arrayJoin(range(1000000000000))",
    # a name on the right of IN is a table
    "SELECT 'ml' IN gangline.runs",
    "SELECT 'ml' IN (gangline.runs)",
    "SELECT 'ml' IN ((gangline.runs))",
    "SELECT 'ml' NOT IN (gangline.runs)",
    "SELECT 'ml' GLOBAL IN gangline.runs",
    "SELECT ('ml', 1) IN (gangline.runs, gangline.steps)",
    # writing, defining, escaping
    "INSERT INTO gangline.steps SELECT * FROM gangline.steps",
    "SELECT 1 INTO OUTFILE '/tmp/x'",
    "SELECT 1 FORMAT CSV INTO OUTFILE '/tmp/x'",
    "SELECT * FROM gangline.steps INTO OUTFILE '/tmp/x' TRUNCATE FORMAT CSV",
    "CREATE TABLE gangline.x (a UInt8) ENGINE = Memory",
    "CREATE FUNCTION f AS x -> x",
    "ALTER TABLE gangline.steps DELETE WHERE 1",
    "DROP TABLE gangline.steps",
    "TRUNCATE TABLE gangline.steps",
    "OPTIMIZE TABLE gangline.steps FINAL",
    "SYSTEM SHUTDOWN",
    "KILL QUERY WHERE 1",
    "ATTACH TABLE gangline.x FROM '/tmp' (a UInt8) ENGINE = File(CSV)",
    "GRANT ALL ON *.* TO x",
    "SET readonly = 0",
    "USE system",
    "EXPLAIN SELECT * FROM gangline.steps",
    "BACKUP TABLE gangline.steps TO File('/tmp/x')",
    "SELECT 1; DROP TABLE gangline.steps",
    "SELECT 1; SELECT 2",
    "SELECT 1 SETTINGS readonly = 0",
    "SELECT * FROM (SELECT 1 SETTINGS max_execution_time = 0)",
    "SELECT 1 UNION ALL SELECT 2 SETTINGS max_memory_usage = 0",
    "SELECT 1 FORMAT Null FORMAT CSV",
    "SELECT 1 FORMAT Npy",
    "SHOW CREATE TABLE gangline.steps",
    "SHOW TABLES FROM system",
    "SHOW GRANTS",
    "DESCRIBE TABLE file('/etc/passwd')",
    "DESCRIBE TABLE system.users",
    "DESCRIBE (SELECT * FROM file('/etc/passwd'))",
    "EXISTS TABLE gangline.steps; DROP TABLE gangline.steps",
    # names that pretend
    "WITH steps AS (SELECT 1) SELECT * FROM steps",
    "WITH runs AS (SELECT * FROM gangline.steps) SELECT * FROM gangline.runs, runs",
    "SELECT * FROM (WITH events AS (SELECT 1) SELECT * FROM events) AS a, events",
    "WITH RECURSIVE x AS (SELECT 1 UNION ALL SELECT * FROM x) SELECT * FROM x",
    "SELECT * FROM unknown_table",
    "SELECT * FROM {t:Identifier}",
    "SELECT {t:Identifier} FROM gangline.steps",
    "SELECT * FROM gangline.{t:Identifier}",
    "SELECT `a\\` FROM file('x')`",
    "SELECT 1 AS `x' FROM file('y') --`",
    'SELECT 1 AS "a\\"b"',
    "SELECT @@version",
    "SELECT * FROM gangline.steps AS s (a, b)",
    "SELECT * FROM gangline.steps SAMPLE 0.1",
    "SELECT 1 /* */ FROM /*x*/ file /**/ ('/etc/passwd')",
    "SELECT 1 -- \n FROM file('/etc/passwd')",
    "SELECT \uff46ile('/etc/passwd')",
    "SELECT 1\0",
    "",
    "    ;",
    "SELECT -- AS a",
    "SELECT UNION ALL SELECT 1",
    "SELECT xor()",
    "SELECT map(1)",
    "SELECT 1 FROM (SELECT # a\n)",
    "not sql at all",
    "SELECT " + "(" * 200 + "1" + ")" * 200,
    "SELECT " + "1+" * 20_000 + "1",
    "SELECT '" + "x" * MAX_CHARS + "'",
    "SELECT a" + ".a" * 1_400,
    "SELECT 1" + "::String" * 900,
    "SELECT " + "x->" * 1_400 + "1",
    "SELECT " + "NOT " * 2_900 + "1",
]


@pytest.mark.parametrize("teams", [MINE, None], ids=["member", "admin"])
@pytest.mark.parametrize("query", ATTACKS, ids=lambda query: query[:60])
def test_refuses(query: str, teams: frozenset[str] | None) -> None:
    with pytest.raises(SqlRefused) as refusal:
        guard(query, teams)
    assert len(str(refusal.value)) < 400


READS = [
    "SELECT * FROM gangline.steps",
    "SELECT * FROM steps",
    "SELECT * FROM `gangline`.`steps`",
    'SELECT * FROM "gangline"."steps" AS "x"',
    "SELECT gangline.steps.value FROM gangline.steps",
    "SELECT * FROM gangline.runs FINAL",
    "SELECT * FROM gangline.runs AS r FINAL",
    "SELECT * FROM gangline.steps UNION ALL SELECT * FROM gangline.steps",
    "SELECT * FROM gangline.steps AS a JOIN gangline.runs AS b ON a.run_id = b.job_id",
    "SELECT * FROM gangline.steps AS a, gangline.runs AS b",
    "SELECT 1 WHERE 1 IN (SELECT step FROM gangline.steps)",
    "SELECT (SELECT max(value) FROM gangline.steps)",
    "WITH x AS (SELECT * FROM steps) SELECT * FROM x",
    "WITH (SELECT max(value) FROM gangline.steps) AS top SELECT top",
    "WITH 'nlp' AS team SELECT * FROM gangline.run_curves",
    "SELECT * FROM (SELECT * FROM (SELECT * FROM gangline.logs))",
    "SELECT CASE WHEN exists(SELECT 1 FROM gangline.usage) THEN 1 END",
    "SELECT * FROM gangline.events ORDER BY (SELECT count() FROM gangline.steps)",
    "SELECT name FROM gangline.steps GROUP BY name HAVING count() > (SELECT 1 FROM runs LIMIT 1)",
    "SELECT * FROM gangline.checkpoints",
    "SELECT * FROM gangline.node_samples",
    "SELECT * FROM gangline.run_list LIMIT 10 FORMAT JSON",
]


@pytest.mark.parametrize("query", READS)
def test_every_table_reference_shows_own_rows_only(query: str) -> None:
    sql = guard(query, MINE).sql
    assert sql.count('FROM "gangline"."') >= 1
    # No reference stands outside of a filtered subquery.
    assert sql.count('"gangline"."') == sql.count('FROM "gangline"."')
    for part in sql.split('FROM "gangline"."')[1:]:
        assert part.partition('"')[2].removeprefix(" FINAL").startswith(" WHERE ")


def test_admins_see_all_rows_and_no_teams_none() -> None:
    assert "WHERE" not in guard("SELECT * FROM steps", None).sql
    assert "1 = 0" in guard("SELECT * FROM steps", frozenset()).sql
    assert engine_filters(None) == {}
    assert set(engine_filters(frozenset()).values()) == {"1 = 0"}


def test_a_team_name_cannot_leave_its_string() -> None:
    sql = guard("SELECT * FROM steps", frozenset({"x') OR ('1' = '1"})).sql
    assert "('x'') OR (''1'' = ''1')" in sql


HANDSHAKES = [
    "SELECT version(), timezone()",
    "SELECT name, value, readonly as readonly FROM system.settings LIMIT 10000",
    "SELECT 1 AS check",
    "SELECT name, engine FROM system.tables WHERE database = 'gangline'",
    "SELECT name FROM system.databases",
    "SHOW TABLES",
    "SHOW TABLES FROM gangline FORMAT JSON",
    "SHOW DATABASES",
    "DESCRIBE TABLE gangline.steps",
    "DESC steps FORMAT JSON",
    "EXISTS TABLE gangline.steps",
    "SELECT {a:Array(String)} AS x, {b:DateTime64(3)} AS y",
    (
        "SELECT toStartOfInterval(time, INTERVAL 60 second) AS t, name, avg(value) AS v "
        "FROM gangline.run_curves WHERE run_id IN ('a', 'b') AND time >= toDateTime64(1, 3) "
        "GROUP BY t, name ORDER BY t LIMIT 10 FORMAT JSON;"
    ),
    (
        "SELECT quantile(0.9)(value), countIf(value > 1), any(name) OVER (PARTITION BY run_id) "
        "FROM steps"
    ),
    "SELECT hyperparameters['lr'], JSONExtractString(spec, 'name') FROM gangline.run_list",
    "SELECT arrayMap(x -> x + 1, [1, 2]), (1, 'a'), map('k', 1)['k'] -- a comment",
]


@pytest.mark.parametrize("query", HANDSHAKES)
def test_lets_clients_and_dashboards_ask(query: str) -> None:
    guarded = guard(query, MINE)
    assert "--" not in guarded.sql
    assert guarded.format in {None, "JSON"}


def test_the_tree_is_searched_as_often_for_many_subqueries(monkeypatch: pytest.MonkeyPatch) -> None:
    find_all, searches = exp.Expression.find_all, []

    def counted(self: exp.Expression, *kinds: Any) -> Any:
        searches.append(kinds)
        return find_all(self, *kinds)

    monkeypatch.setattr(exp.Expression, "find_all", counted)
    found = []
    for many in (2, 40):
        searches.clear()
        parts = ", ".join(f"c{n} AS (SELECT * FROM steps)" for n in range(many))
        names = ", ".join(f"c{n}" for n in range(many))
        guard(f"WITH {parts} SELECT * FROM {names}", None)
        found.append(len(searches))
    assert found[1] == found[0]


def test_the_gateways_search_in_logs_is_allowed() -> None:
    asked: list[str] = []

    def ask(sql: str, _: object) -> list[dict[str, object]]:
        asked.append(sql)
        return []

    log_page(ask, LogFilter("job-a", "nlp", 1, 1, "cuda", errors=True), size=9, cursor="1.1.1.1")
    assert guard(asked[0], None).sql
