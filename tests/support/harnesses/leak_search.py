"""Looks for a text everywhere a platform keeps or shows something. Each search names its finds."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import httpx

from gangline.local.client import Client
from gangline_bus.kafka import KafkaBus
from gangline_bus.ports import Record, TopicPartition
from gangline_bus.topics import TopicNames
from gangline_schemas.catalog import Topic, catalog

_TIMEOUT_S = 30.0


def in_files(root: Path, text: str) -> list[Path]:
    """Files below `root` that hold the text, or have it in their name."""
    needle = text.encode()
    found = []
    for folder, folders, files in os.walk(root):
        found += [Path(folder, name) for name in folders if text in name]
        for name in files:
            path = Path(folder, name)
            regular = path.is_file() and not path.is_symlink()
            if text in name or (regular and _holds(path, needle)):
                found.append(path)
    return sorted(found)


def _holds(path: Path, needle: bytes) -> bool:
    kept = b""
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                if needle in kept + block:
                    return True
                kept = block[-len(needle) :]
    except FileNotFoundError:  # a running platform makes and deletes files
        return False
    return False


def in_topics(kafka: Mapping[str, str], text: str) -> set[str]:
    """Topics, dead letters included, with a committed record that holds the text."""
    names = TopicNames()
    topics = [names.name(topic) for topic in Topic]
    topics += [
        names.dlq(names.name(t))
        for t, e in catalog().items()
        if e.kind == "stream" and not e.compacted
    ]
    bus = KafkaBus(kafka["bootstrap.servers"], client="leak-search", settings=kafka)
    places = [TopicPartition(name, p) for name in topics for p in range(bus.partitions(name))]
    ends = bus.end_offsets(places)
    reader = bus.reader("leak-search")
    reader.assign(dict(bus.start_offsets(places)))
    found: set[str] = set()
    while any(reader.positions().get(place, 0) < end for place, end in ends.items() if end):
        records = reader.poll(5000, 0.5)
        found |= {record.topic for record in records if _record_holds(record, text.encode())}
    reader.close()
    bus.close()
    return found


def _record_holds(record: Record, needle: bytes) -> bool:
    parts = [record.key, record.value]
    parts += [part for name, value in record.headers for part in (name.encode(), value)]
    return any(needle in part for part in parts if part is not None)


def in_clickhouse(client: Client, text: str) -> list[str]:
    """`table.column` of every column with a row that holds the text."""
    found = []
    for table in _query(client, "SHOW TABLES FROM gangline"):
        columns = [row.split("\t")[0] for row in _query(client, f"DESCRIBE TABLE {table}")]
        counts = ", ".join(
            f"countIf(position(toString(`{name}`), {{needle:String}}) > 0)" for name in columns
        )
        (row,) = _query(client, f"SELECT {counts} FROM gangline.{table}", needle=text)
        pairs = zip(columns, row.split("\t"), strict=True)
        found += [f"{table}.{name}" for name, count in pairs if count != "0"]
    return found


def _query(client: Client, sql: str, **parameters: str) -> list[str]:
    answer = httpx.post(
        client.clickhouse_url,
        content=f"{sql} FORMAT TabSeparated" if sql.startswith("SELECT") else sql,
        params={f"param_{name}": value for name, value in parameters.items()},
        headers={"X-ClickHouse-Key": client.token},
        timeout=_TIMEOUT_S,
    )
    assert answer.status_code == 200, f"{sql}: {answer.text}"
    return answer.text.splitlines()


def at_endpoints(data_dir: Path, text: str) -> list[str]:
    """Health and metrics pages of all processes that show the text."""
    pages = [
        f"{json.loads(path.read_text())['url']}{page}"
        for path in sorted((data_dir / "run" / "health").glob("*.json"))
        for page in ("/healthz", "/readyz", "/metrics")
    ]
    assert pages, "no process told its health address"
    return [page for page in pages if text in httpx.get(page, timeout=_TIMEOUT_S).text]


def in_answers(client: Client, paths: Iterable[str], text: str) -> list[str]:
    """REST paths whose answer to an admin shows the text."""
    with httpx.Client(
        base_url=client.url,
        headers={"Authorization": f"Bearer {client.token}"},
        timeout=_TIMEOUT_S,
    ) as rest:
        answers = {path: rest.get(path) for path in paths}
    assert all(answer.status_code == 200 for answer in answers.values()), answers
    return [path for path, answer in answers.items() if text in answer.text]
