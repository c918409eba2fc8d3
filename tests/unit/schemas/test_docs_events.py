"""docs/reference/events.md says what the code does: types, headers, topics, examples."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gangline_bus.codec import UndecodableError, encode
from gangline_bus.dlq import KEPT_VALUE_BYTES, DlqLimit, refused_record
from gangline_bus.input_offsets import with_inputs
from gangline_bus.ports import Record, TopicPartition
from gangline_bus.topics import TopicNames
from gangline_schemas.catalog import catalog, event_types, topic_of
from gangline_schemas.envelope import Envelope, LogPosition
from gangline_schemas.events.requests import JobCancelRequested

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "reference" / "events.md").read_text(encoding="utf-8")
WORDS = set(re.findall(r"`([^`\s]+)`", PAGE))
TOPICS = {settings.name for settings in TopicNames().settings()}
EXAMPLES = re.findall(r"<!-- ([a-z.]+) -->\n```json\n(.*?)```", PAGE, re.DOTALL)


def written_headers() -> set[str]:
    """Every header that an event can carry."""
    event = JobCancelRequested(job_id="a", user="b")
    at = datetime(2026, 1, 1, tzinfo=UTC)
    trace = f"00-{'1' * 32}-{'2' * 16}-01"
    envelope = Envelope("1", "/test", at, "a", event, trace, LogPosition(0, 1, 2))
    record = with_inputs(encode(envelope, topic="t", release="0.1.0"), {TopicPartition("t", 0): 1})
    return {name for name, _ in record.headers}


def dead_letter_headers() -> set[str]:
    record = Record("t", 0, 1, b"k", bytes(KEPT_VALUE_BYTES + 1), (), 0)
    added = refused_record(record, UndecodableError("no"), dlq="t.dlq", trace="where").headers
    return {name for name, _ in added}


def test_every_header_is_described_and_no_other() -> None:
    rows = re.findall(r"^\| (`[^|]+`) \|", PAGE, re.MULTILINE)
    described = {word for row in rows for word in re.findall(r"`([^`]+)`", row)} - TOPICS
    assert described == written_headers() | dead_letter_headers()


def test_every_type_that_is_named_exists() -> None:
    dotted = {word for word in WORDS if re.fullmatch(r"[a-z]+(\.[a-z]+)+", word)}
    unknown = dotted - set(event_types()) - TOPICS
    assert unknown == {"isolation.level"} & unknown, unknown
    assert len(dotted & set(event_types())) > 10


def test_the_table_of_topics_is_the_catalog() -> None:
    rows = re.findall(
        r"^\| `(gangline\.[a-z]+)` \| (.+?) \| (.+?) \| (.+?) \|$", PAGE, re.MULTILINE
    )
    assert rows == [(t.value, e.owner, e.key, e.retention) for t, e in catalog().items()]
    assert {word for word in WORDS if word.endswith(".dlq")} == TOPICS - {
        t.value for t in catalog()
    }


@pytest.mark.parametrize(("name", "text"), EXAMPLES)
def test_examples_are_valid_events(name: str, text: str) -> None:
    event_types()[name].model_validate_json(text)


def test_there_are_examples() -> None:
    assert {name for name, _ in EXAMPLES} >= {"job.submitted", "checkpoint.committed"}


def test_commands_send_the_attributes_that_are_needed_to_the_right_topic() -> None:
    commands = [
        block for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) if "job." in block
    ]
    assert len(commands) == 2
    for command in commands:
        (kind,) = re.findall(r"ce_type[=:]([a-z.]+)", command)
        assert f" {topic_of(kind).value} " in command
        sent = set(re.findall(r"(ce_[a-z]+)[=:]", command))
        assert sent == {"ce_specversion", "ce_id", "ce_source", "ce_type", "ce_subject"}


def test_files_and_limits_that_are_named_are_there() -> None:
    for word in WORDS:
        if word.startswith(("schemas/", "tests/")):
            assert (ROOT / word).exists(), word
    limit = DlqLimit()
    kept = f"keeps at most {limit._limit:,} such records within an hour"
    assert kept in " ".join(PAGE.split())
