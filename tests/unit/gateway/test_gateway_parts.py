"""Rings, cursors, job ids, names of hosts and settings of the gateway."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from starlette.datastructures import Headers

from gangline_bus.ports import Record, TopicPartition
from gangline_bus.topics import TopicNames
from gangline_gateway import cursor, ring
from gangline_gateway.config import Settings
from gangline_gateway.request_checks import Names
from gangline_gateway.ring import Ring
from gangline_schemas import job_ids
from gangline_schemas.base import Identifier
from gangline_service.settings import ServiceSettings

NAMES = TopicNames("t.")
STEPS = [TopicPartition("t.gangline.steps", index) for index in range(4)]


def record(offset: int, size: int = 1) -> Record:
    return Record("t.gangline.steps", 0, offset, b"k", b"x" * size, (), 0)


def test_a_ring_gives_what_came_from_a_position_on() -> None:
    kept = Ring(10, 10)
    for offset in (10, 11, 13, 13, 12):
        kept.add(record(offset))
    assert [item.offset for item in kept.read(11, 10)] == [11, 13]
    assert [item.offset for item in kept.read(0, 2)] == [10, 11]
    kept.reached(15)
    assert kept.end == 15


def test_a_ring_is_bounded_by_number_and_by_bytes() -> None:
    many, large = Ring(0, 0), Ring(0, 0)
    for offset in range(3 * ring.MAX_RECORDS):
        many.add(record(offset))
    for offset in range(100):
        large.add(record(offset, 1 << 20))
    assert len(many.read(0, 10**9)) <= ring.MAX_RECORDS
    assert many.read(0, 10**9)[0].offset == many.start
    assert sum(len(item.value) for item in large.read(0, 10**9)) <= ring.MAX_BYTES
    assert large.read(0, 10**9)[-1].offset == 99


@given(st.dictionaries(st.sampled_from(STEPS), st.integers(0, 2**50), min_size=1))
def test_a_cursor_gives_back_its_positions(positions: dict[TopicPartition, int]) -> None:
    text = cursor.write(positions, NAMES)
    assert cursor.read(text, STEPS, NAMES) == positions
    assert "\n" not in text


@given(st.text(max_size=80))
def test_a_text_that_is_no_cursor_is_refused(text: str) -> None:
    try:
        found = cursor.read(text, STEPS, NAMES)
    except cursor.CursorError:
        return
    assert cursor.write(found, NAMES)


@pytest.mark.parametrize(
    "text", ["", "steps.0", "quota.0.1", "steps.4.1", "steps.0.-1", "steps.0.1,", "x" * 5000]
)
def test_a_cursor_of_another_stream_is_refused(text: str) -> None:
    with pytest.raises(cursor.CursorError):
        cursor.read(text, STEPS, NAMES)


@given(st.from_regex(r"\A[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z"), st.text())
def test_every_name_and_key_make_a_valid_id(name: str, key: str) -> None:
    suffix = job_ids.suffix_of_key("nlp", key)
    made = job_ids.job_id(name, suffix)
    assert TypeAdapter(Identifier).validate_python(made) == made
    assert job_ids.suffix_of(made) == suffix


def test_keys_of_two_teams_never_meet() -> None:
    assert job_ids.suffix_of_key("nlp", "k") != job_ids.suffix_of_key("vision", "k")
    assert job_ids.suffix_of_key("nlp", "k") == job_ids.suffix_of_key("nlp", "k")


@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("127.0.0.1:8080", True),
        ("LOCALHOST:8080", True),
        ("[::1]:8080", True),
        ("gangline.example:8080", True),
        ("gangline.example", True),
        ("other.example:443", True),
        ("other.example:8080", False),
        ("127.0.0.1", False),
        ("127.0.0.1:9090", False),
        ("evil.example:8080", False),
        ("127.0.0.1.evil.example:8080", False),
        ("", False),
    ],
)
def test_only_known_hosts_are_answered(host: str, known: bool) -> None:
    names = Names.of(8080, ["gangline.example", "other.example:443"])
    assert names.knows_host(Headers({"host": host})) is known


def test_two_host_headers_are_refused() -> None:
    raw = [(b"host", b"127.0.0.1:80"), (b"host", b"127.0.0.1:80")]
    assert not Names.of(80).knows_host(Headers(raw=raw))


@pytest.mark.parametrize(
    ("headers", "known"),
    [
        ({}, True),
        ({"origin": "http://127.0.0.1:8080"}, True),
        ({"origin": "https://127.0.0.1:8080"}, False),
        ({"origin": "http://127.0.0.1:9999"}, False),
        ({"origin": "http://evil.example"}, False),
        ({"origin": "null"}, False),
        ({"origin": "http://["}, False),
        ({"sec-fetch-site": "cross-site"}, False),
        ({"sec-fetch-site": "same-origin"}, True),
    ],
)
def test_pages_of_others_are_refused(headers: dict[str, str], known: bool) -> None:
    assert Names.of(8080).knows_origin(Headers(headers)) is known


def settings(tmp_path: Path, **fields: object) -> Settings:
    return Settings(tokens_file=tmp_path / "tokens.json", **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_loopback_needs_no_tls(tmp_path: Path, host: str) -> None:
    assert settings(tmp_path, gateway_host=host).loopback


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "gangline.example"])
def test_other_addresses_are_refused_without_tls(tmp_path: Path, host: str) -> None:
    with pytest.raises(ValidationError, match="tls_cert"):
        settings(tmp_path, gateway_host=host)
    pair = {"tls_cert": tmp_path / "c", "tls_key": tmp_path / "k"}
    assert settings(tmp_path, gateway_host=host, **pair).scheme == "https"


def test_tokens_are_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GANGLINE_TOKENS_FILE", raising=False)
    with pytest.raises(ValidationError, match="tokens_file"):
        Settings()
    assert issubclass(Settings, ServiceSettings)


def test_credentials_in_the_url_of_clickhouse_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValidationError) as found:
        settings(tmp_path, clickhouse_url="http://me:hunter2@127.0.0.1:8123")
    assert "hunter2" not in str(found.value)
