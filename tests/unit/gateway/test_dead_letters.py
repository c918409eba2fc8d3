"""Dead letters: pages over all topics, their reason, and no secret in a message."""

from __future__ import annotations

import json

import pytest

from gangline_bus.codec import UndecodableError
from gangline_bus.dlq import refused_record
from gangline_bus.memory import Broker
from gangline_bus.ports import Headers, Record
from gangline_bus.topics import TopicNames, create_topics
from gangline_gateway.dead_letters import SHOWN_CHARS, DeadLetters
from gangline_gateway.problems import ProblemError
from gangline_schemas.api.health import DeadLetter
from gangline_schemas.catalog import Topic

NAMES = TopicNames("p.")
HEADERS = (("ce_type", b"job.submitted"), ("ce_source", b"/sdk"), ("ce_subject", b"job-1"))


class Letters:
    def __init__(self) -> None:
        self.broker = Broker()
        self.bus = self.broker.connect("refuser")
        create_topics(self.bus, NAMES)
        self.read = DeadLetters(lambda: self.broker.connect("reader"), NAMES)
        self.sent = 0

    def refuse(
        self,
        topic: Topic,
        value: bytes = b"{}",
        reason: str = "is wrong",
        headers: Headers = HEADERS,
    ) -> None:
        self.sent += 1
        name = NAMES.name(topic)
        record = Record(name, 2, self.sent, b"k", value, headers, 1000 + self.sent)
        error = UndecodableError(reason)
        self.bus.writer().send(refused_record(record, error, dlq=NAMES.dlq(name)))

    def all(self, limit: int, *topics: Topic) -> list[DeadLetter]:
        found: list[DeadLetter] = []
        cursor = None
        while True:
            page = self.read.page(topics, limit=limit, cursor=cursor)
            assert len(page.dead_letters) <= limit
            found += page.dead_letters
            cursor = page.cursor
            if cursor is None:
                return found


def test_pages_hold_each_record_once_the_newest_first() -> None:
    letters = Letters()
    for turn in range(9):
        letters.refuse(Topic.REQUESTS if turn % 3 else Topic.STEPS)
    for limit in (1, 2, 4, 50):
        found = letters.all(limit)
        assert sorted(one.offset for one in found) == list(range(1, 10))
    assert {one.topic for one in letters.all(5, Topic.STEPS)} == {"gangline.steps"}
    counts = {one.topic: one.records for one in letters.read.counts()}
    assert counts == {"gangline.requests": 6, "gangline.steps": 3}


def test_a_letter_says_where_it_was_and_why_it_was_refused() -> None:
    letters = Letters()
    letters.refuse(Topic.REQUESTS, reason="resources.gpus: must be at least 1")
    (one,) = letters.all(10)
    assert (one.topic, one.partition, one.offset) == ("gangline.requests", 2, 1)
    assert (one.type, one.source, one.subject) == ("job.submitted", "/sdk", "job-1")
    assert one.reason == "resources.gpus: must be at least 1"


@pytest.mark.parametrize("size", ["\u00b2", "9" * 900, "-1"])
def test_a_size_that_the_sender_claims_hides_no_letter(size: str) -> None:
    letters = Letters()
    claims = (*HEADERS, ("gangline_dlq_value_bytes", size.encode()))
    letters.refuse(Topic.REQUESTS, headers=claims)
    (one,) = letters.all(10)
    assert (one.size_bytes, one.cut) == (2, False)


@pytest.mark.parametrize(
    "value",
    [
        json.dumps({"spec": {"env": {"FOO": "hunter2"}, "name": "n"}}).encode(),
        json.dumps({"spec": [{"api_token": "hunter2"}], "name": "n"}).encode(),
        b'{"name": "n", "env": {"FOO": "hunter2", "BAR',
        b'name: "n", password=hunter2 \xff',
    ],
)
def test_no_secret_is_shown(value: bytes) -> None:
    letters = Letters()
    letters.refuse(Topic.REQUESTS, value)
    (one,) = letters.all(10)
    assert "hunter2" not in one.message
    assert '"n"' in one.message


def test_a_message_is_cut_and_has_printable_characters_alone() -> None:
    letters = Letters()
    letters.refuse(Topic.REQUESTS, b"\x1b[2J" + b"x" * (SHOWN_CHARS + 1))
    (one,) = letters.all(10)
    assert one.cut
    assert len(one.message) == SHOWN_CHARS
    assert "\x1b" not in one.message


def test_a_cursor_of_nothing_is_refused() -> None:
    with pytest.raises(ProblemError):
        Letters().read.page((), limit=1, cursor="nothing.x")
