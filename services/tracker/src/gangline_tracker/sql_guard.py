"""Outside SQL: the guard refuses all that it does not know, and teams see their own rows only.

1. One statement, parsed. A text that does not parse is refused, except a few fixed SHOW, DESCRIBE
   and EXISTS forms, which clients send at their start.
2. Every node of the tree is of a kind on a list. Every table is ours or a listed system table, by
   name. Table functions, placeholders and names that the engine would look up elsewhere are
   refused.
3. Each table reference becomes a subquery with the rows that the reader may see.
4. The text is written again from the tree, without comments and with every name quoted. Then its
   tokens are checked again: before each parenthesis stands a listed function or keyword. Only this
   text reaches the engine.

The engine adds its own limits: a read-only session, time, memory and result size.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import Token, TokenType

from gangline_tracker.sql_names import (
    DATABASE,
    FORMATS,
    FUNCTIONS,
    JOB_TABLES,
    KEYWORDS,
    NODE_TABLES,
    SYSTEM_TABLES,
    TABLES,
    TEAM_TABLES,
    TYPES,
)

DIALECT = "clickhouse"
MAX_CHARS = 64 * 1024
MAX_DEPTH = 24
MAX_TOKENS = 3_000

_WORD = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
_NAME = re.compile(r"^[^\\\"'`\x00-\x1f]{1,256}$")
_IDENT = r'[`"]?([A-Za-z_][A-Za-z0-9_]*)[`"]?'
_QUALIFIED = rf"(?:{_IDENT}\s*\.\s*)?{_IDENT}"
_FORMAT = re.compile(r"\s+FORMAT\s+(\w+)\s*$", re.IGNORECASE)
_SHOW_DATABASES = re.compile(r"^SHOW\s+DATABASES$", re.IGNORECASE)
_SHOW_TABLES = re.compile(rf"^SHOW\s+TABLES(?:\s+(?:FROM|IN)\s+{_IDENT})?$", re.IGNORECASE)
_DESCRIBE = re.compile(rf"^(?:DESC|DESCRIBE)\s+(?:TABLE\s+)?{_QUALIFIED}$", re.IGNORECASE)
_EXISTS = re.compile(rf"^EXISTS\s+(?:TABLE\s+|VIEW\s+)?{_QUALIFIED}$", re.IGNORECASE)

_ALLOWED_NODES = (
    exp.Select, exp.SetOperation, exp.Subquery, exp.With, exp.CTE, exp.From, exp.Join, exp.Where,
    exp.PreWhere, exp.Group, exp.Having, exp.Order, exp.Ordered, exp.Limit, exp.Offset, exp.Final,
    exp.Table, exp.TableAlias, exp.Alias, exp.Column, exp.Identifier, exp.Literal, exp.Star,
    exp.Paren, exp.Tuple, exp.Array, exp.In, exp.Between, exp.Boolean, exp.Null, exp.Binary,
    exp.Unary, exp.Func, exp.Cast, exp.DataType, exp.DataTypeParam, exp.If, exp.Case, exp.Interval,
    exp.Var, exp.Lambda, exp.Bracket, exp.Slice, exp.Distinct, exp.Window, exp.WindowSpec,
    exp.Filter, exp.Qualify, exp.Placeholder, exp.Aliases, exp.PropertyEQ, exp.Cube, exp.Rollup,
    exp.GroupingSets, exp.IntervalSpan, exp.JSONPath, exp.JSONPathPart, exp.WithFill,
)  # fmt: skip
_REFUSED_NODES = (
    exp.Command, exp.Parameter, exp.SessionParameter, exp.Values, exp.Unnest, exp.Lateral,
    exp.TableSample, exp.Into, exp.Lock,
)  # fmt: skip
_TABLE_ARGS = {"this", "db", "alias", "joins"}


class SqlRefused(ValueError):
    """The query is not allowed. The message says what and, where there is one, the way out."""


@dataclass(frozen=True, slots=True)
class GuardedQuery:
    """Text that may reach the engine, and the format that it asked for."""

    sql: str
    format: str | None


def guard(text: str, teams: frozenset[str] | None) -> GuardedQuery:
    """`text` as these teams may run it; None: every team's rows. Raises SqlRefused."""
    if len(text) > MAX_CHARS:
        raise SqlRefused(f"the query is longer than {MAX_CHARS:,} characters")
    if "\0" in text:
        raise SqlRefused("the query holds a NUL character")
    try:
        return _client_statement(text) or _select(text, teams)
    except RecursionError:
        raise SqlRefused("the query is nested too deeply") from None


def _select(text: str, teams: frozenset[str] | None) -> GuardedQuery:
    tree = _parse(text)
    wanted = _take_format(tree)
    if not all(part.expressions for part in tree.find_all(exp.Select)):
        raise SqlRefused("a SELECT names no column")
    ctes = _check_tree(tree)
    tree = _filter_tables(tree, ctes, teams)
    sql = tree.sql(DIALECT, identify=True, comments=False)
    _check_tokens(sql)
    return GuardedQuery(sql, wanted)


def engine_filters(teams: frozenset[str] | None) -> dict[str, str]:
    """The same rule as conditions that the engine itself puts on tables, as a second line."""
    if teams is None:
        return {}
    stored = ("steps", "logs", "runs", "usage", "incidents", "metric_points", "run_tags")
    tables = sorted(f"{DATABASE}.{table}" for table in stored)
    return {table: _condition(DATABASE, "runs", teams) for table in tables}


def _client_statement(text: str) -> GuardedQuery | None:
    body = text.strip().rstrip(";").strip()
    found = _FORMAT.search(body)
    wanted = None
    if found is not None:
        body, wanted = body[: found.start()].strip(), found[1]
    sql: str | None = None
    if _SHOW_DATABASES.match(body):
        sql = f"SELECT '{DATABASE}' AS name"
    elif shown := _SHOW_TABLES.match(body):
        if shown[1] not in {None, DATABASE}:
            raise SqlRefused(f"only the database {DATABASE} can be listed")
        sql = f"SELECT name FROM system.tables WHERE database = '{DATABASE}' ORDER BY name"  # noqa: S608
    elif described := _DESCRIBE.match(body):
        sql = f"DESCRIBE TABLE {_known_table(described[1], described[2])}"
    elif asked := _EXISTS.match(body):
        there = asked[1] in {None, DATABASE} and asked[2] in TABLES
        sql = f"SELECT toUInt8({int(there)}) AS result"
    if sql is None:
        return None
    return GuardedQuery(sql, _known_format(wanted))


def _known_table(database: str | None, table: str) -> str:
    if database in {None, DATABASE} and table in TABLES:
        return f"{DATABASE}.{table}"
    raise SqlRefused(f"there is no table {table} for you; there are: {', '.join(sorted(TABLES))}")


def _known_format(name: str | None) -> str | None:
    if name is not None and name not in FORMATS:
        raise SqlRefused(f"the format {name[:40]} is not served; use JSON, CSV, Native or the like")
    return name


def _parse(text: str) -> exp.Expression:
    try:
        tokens = sqlglot.tokenize(text, read=DIALECT)
        _check_size(tokens)
        statements = [s for s in sqlglot.parse(text, read=DIALECT) if s is not None]
    except SqlRefused:
        raise
    except (SqlglotError, LookupError, TypeError, AttributeError, ValueError) as error:
        # The parser fails with any of these where a call lacks arguments: xor(), map(1).
        first = (getattr(error, "errors", None) or [{}])[0]
        where = f" at line {first.get('line')}, column {first.get('col')}" if first else ""
        raise SqlRefused(
            f"the query was not understood{where}; plain SELECT queries are served"
        ) from None
    if len(statements) != 1:
        raise SqlRefused("send exactly one statement")
    tree = statements[0]
    if not isinstance(tree, exp.Select | exp.SetOperation | exp.Subquery):
        raise SqlRefused("only SELECT (and SHOW TABLES, DESCRIBE TABLE, EXISTS TABLE) is served")
    return tree


def _check_size(tokens: list[Token]) -> None:
    if len(tokens) > MAX_TOKENS:
        raise SqlRefused(f"the query has more than {MAX_TOKENS:,} words")
    depth = 0
    for token in tokens:
        if token.token_type in {TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE}:
            depth += 1
        elif token.token_type in {TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE}:
            depth -= 1
        if depth > MAX_DEPTH:
            raise SqlRefused(f"the query is nested more than {MAX_DEPTH} deep")


def _take_format(tree: exp.Expression) -> str | None:
    wanted = None
    for node in tree.find_all(exp.Select, exp.SetOperation, exp.Subquery):
        if node.args.get("settings"):
            raise SqlRefused("SETTINGS cannot be given in a query; limits are set by the server")
        found = node.args.get("format")
        if found is not None:
            if not isinstance(found, exp.Identifier) or wanted is not None:
                raise SqlRefused("give at most one FORMAT, at the end")
            wanted = found.name
            node.set("format", None)
    return _known_format(wanted)


def _check_tree(tree: exp.Expression) -> frozenset[str]:
    """Refuse what is not listed; the names of the query's own subqueries (WITH)."""
    ctes = frozenset(cte.alias for cte in tree.find_all(exp.CTE))
    for node in tree.walk():
        if isinstance(node, _REFUSED_NODES) or not isinstance(node, _ALLOWED_NODES):
            raise SqlRefused(f"{node.key.upper()} is not allowed here")
        if isinstance(node, exp.Identifier) and not _NAME.match(node.name):
            raise SqlRefused("names must not hold quotes, backslashes or control characters")
        if isinstance(node, exp.With) and node.args.get("recursive"):
            raise SqlRefused("WITH RECURSIVE is not allowed")
        if isinstance(node, exp.CTE) and node.alias in TABLES | {DATABASE, "system"}:
            raise SqlRefused(f"WITH must not define {node.alias}, the name of a table")
        if isinstance(node, exp.Placeholder):
            _check_placeholder(node)
        if isinstance(node, exp.In):
            _check_in(node)
        if isinstance(node, exp.Table):
            _check_table(node, ctes)
    return ctes


def _check_placeholder(node: exp.Placeholder) -> None:
    kind = node.args.get("kind")
    if not _WORD.match(node.name) or not isinstance(kind, exp.DataType):
        raise SqlRefused("parameters are values: {name:Type}, and no identifiers")


def _check_in(node: exp.In) -> None:
    """ClickHouse takes a name on the right of IN for a table."""
    field = node.args.get("field")
    if field is not None and not isinstance(
        field, exp.Placeholder | exp.Array | exp.Tuple | exp.Literal
    ):
        raise SqlRefused("the right side of IN must be a list or a subquery")
    for item in _listed(node):
        if isinstance(item, exp.Column | exp.Identifier | exp.Dot | exp.Alias | exp.Star):
            raise SqlRefused("a list after IN holds values only; write a = b or use a subquery")


def _listed(node: exp.In) -> Iterator[exp.Expression]:
    pending = list(node.expressions)
    field = node.args.get("field")
    pending += [field] if field is not None else []
    while pending:
        item = pending.pop()
        if isinstance(item, exp.Paren):
            pending.append(item.this)
        elif isinstance(item, exp.Tuple | exp.Array):
            pending += item.expressions
        else:
            yield item


def _check_table(node: exp.Table, ctes: frozenset[str]) -> None:
    if not isinstance(node.this, exp.Identifier):
        raise SqlRefused("table functions (file, url, numbers, ...) are not allowed")
    extra = {name for name, value in node.args.items() if value} - _TABLE_ARGS
    alias = node.args.get("alias")
    if extra or node.args.get("joins") or (alias is not None and alias.columns):
        raise SqlRefused(f"{', '.join(sorted(extra)) or 'this form'} is not allowed after a table")
    if node.catalog:
        raise SqlRefused("name tables as table or gangline.table")
    if node.db == "system":
        if node.name not in SYSTEM_TABLES:
            raise SqlRefused(f"system.{node.name[:60]} is not served")
    elif node.db not in {"", DATABASE} or (node.db and node.name not in TABLES):
        raise SqlRefused(f"there is no table {node.db[:60]}.{node.name[:60]} for you")
    elif not node.db and node.name not in TABLES | ctes:
        # No subquery's name either; every WITH of the query counts, in whatever order.
        _known_table(None, node.name[:60])


def _filter_tables(
    tree: exp.Expression, ctes: frozenset[str], teams: frozenset[str] | None
) -> exp.Expression:
    for column in list(tree.find_all(exp.Column)):
        if column.args.get("db") is not None and column.text("db") == DATABASE:
            column.set("db", None)  # each table has an alias from here on
    for table in list(tree.find_all(exp.Table)):
        if not table.db and table.name in ctes:
            continue
        database = table.db or DATABASE
        condition = _condition(database, table.name, teams)
        alias = exp.TableAlias(this=exp.to_identifier(table.alias or table.name, quoted=True))
        source = exp.Table(
            this=exp.to_identifier(table.name, quoted=True),
            db=exp.to_identifier(database, quoted=True),
        )
        parent = table.parent
        final = isinstance(parent, exp.Final)
        if not condition:
            source.set("alias", alias)
            table.replace(source)
            continue
        rows = exp.select("*").from_(exp.Final(this=source) if final else source)
        rows = rows.where(sqlglot.condition(condition, dialect=DIALECT))
        (parent if final and parent is not None else table).replace(
            exp.Subquery(this=rows, alias=alias)
        )
    return tree


def _condition(database: str, table: str, teams: frozenset[str] | None) -> str:
    """Which rows may be seen, as a condition; "": all."""
    if database == "system":
        return SYSTEM_TABLES[table]
    if not teams:
        return "" if teams is None else "1 = 0"
    mine = "team IN (" + ", ".join(exp.Literal.string(t).sql(DIALECT) for t in sorted(teams)) + ")"
    jobs = f"SELECT job_id FROM {DATABASE}.runs WHERE {mine}"  # noqa: S608
    if table in TEAM_TABLES:
        return mine
    if table in JOB_TABLES:
        return f"job_id IN ({jobs})"
    if table in NODE_TABLES:
        # Only samples of nodes where no other team's job ran.
        return (
            f"notEmpty(jobs) AND hasAll((SELECT groupArray(job_id) FROM {DATABASE}.runs "  # noqa: S608
            f"WHERE {mine}), jobs)"
        )
    return f"({mine}) OR (team = '' AND subject IN ({jobs}))"


def _check_tokens(sql: str) -> None:
    """The last look, at nothing but the text that the engine will get."""
    allowed = FUNCTIONS | KEYWORDS | TYPES
    tokens = sqlglot.tokenize(sql, read=DIALECT)
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        if token.token_type in {TokenType.STRING, TokenType.NUMBER}:
            continue
        called = following is not None and following.token_type is TokenType.L_PAREN
        if token.token_type is TokenType.IDENTIFIER:
            if called:
                raise SqlRefused("a quoted name cannot be called")
            continue
        if not token.text.isascii():
            raise SqlRefused("letters outside of ASCII are allowed in quotes only")
        if called and _WORD.match(token.text) and token.text.lower() not in allowed:
            raise SqlRefused(f"the function {token.text[:60]} is not allowed")
