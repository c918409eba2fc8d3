"""The SQL of deploy/clickhouse/README.md: the engine's parser takes it, and it names our tables."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from gangline_tracker.migrate import LOCK

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "deploy" / "clickhouse" / "README.md").read_text(encoding="utf-8")
MIGRATIONS = ROOT / "services" / "tracker" / "src" / "gangline_tracker" / "migrations"
STATEMENTS = [
    statement.strip()
    for block in re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
    for statement in block.split(";")
    if statement.strip()
]
_PARSE = """
import chdb, sys
for statement in sys.stdin.read().split(";"):
    chdb.query("EXPLAIN AST " + statement)
"""


def parse(statements: list[str]) -> subprocess.CompletedProcess[str]:
    """In a process of its own: the embedded engine allows one database per process."""
    return subprocess.run(
        [sys.executable, "-c", _PARSE],
        input=";".join(statements),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_every_statement_is_in_the_engine_s_grammar() -> None:
    assert len(STATEMENTS) > 10
    done = parse(STATEMENTS)
    assert done.returncode == 0, done.stderr
    assert parse(["GRANT SELEKT ON gangline.* TO somebody"]).returncode != 0


def test_every_table_that_is_named_is_made_by_the_migrations() -> None:
    made = "\n".join(path.read_text() for path in sorted(MIGRATIONS.glob("*.sql")))
    tables = {*re.findall(r"EXISTS gangline\.(\w+)", made), LOCK.removeprefix("gangline.")}
    named = {name for s in STATEMENTS for name in re.findall(r"ON gangline\.(\w+)", s)}
    assert named
    assert named <= tables
    assert set(re.findall(r"`(\w+\.sql)`", PAGE)) == {
        path.name for path in MIGRATIONS.glob("*.sql")
    }
    with_team = set(re.findall(r"POLICY nlp_\w+ ON gangline\.(\w+)", PAGE))
    for table in with_team:
        (body,) = re.findall(rf"EXISTS gangline\.{table}\n\((.*?)\nENGINE", made, re.DOTALL)
        assert re.search(r"^    team ", body, re.MULTILINE), f"{table} has no team"
