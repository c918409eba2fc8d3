"""What a transactional writer says when its broker dies: at once, and for good."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from gangline.local.kafka import EmbeddedKafka
from gangline_bus.kafka import KafkaBus
from gangline_bus.ports import BusUnavailable, OutRecord, TopicSettings, TransactionalWriter


def check_until_lost(writer: TransactionalWriter) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        writer.check_connection()
        time.sleep(0.05)


def test_a_writer_that_lost_its_broker_says_so_and_writes_no_more(tmp_path: Path) -> None:
    with EmbeddedKafka(tmp_path / "kafka") as broker:
        bus = KafkaBus(broker.bootstrap, client="test")
        bus.create_topics([TopicSettings("log", 1, -1)])
        writer = bus.transactional_writer("writer")
        writer.commit([OutRecord("log", None, b"one")], {}, "group")
        writer.check_connection()
        assert broker.pid is not None
        os.kill(broker.pid, signal.SIGKILL)
        with pytest.raises(BusUnavailable):
            check_until_lost(writer)
        # Not even when the broker is back: a client that lost it can hang.
        broker.start()
        with pytest.raises(BusUnavailable):
            writer.commit([OutRecord("log", None, b"two")], {}, "group")
        again = KafkaBus(broker.bootstrap, client="again")
        again.transactional_writer("writer").commit([OutRecord("log", None, b"two")], {}, "group")
        again.close()
        bus.close()
