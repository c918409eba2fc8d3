"""The tracker's rows equal the records of Kafka after kill -9: many of all kinds.

`test_tracker_crashes.py` has each place between two writes; `test_tracking_kills.py` has clients.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from gangline_bus.ports import OutRecord, TopicPartition
from gangline_schemas.catalog import Topic
from gangline_schemas.events.scheduling import JobQueued
from support.fixtures.tracker import BASE, STORIES, job_spec, log_event, number, step_event
from support.harnesses.tracker_process import TrackerProcess
from support.waiting import wait_until


@pytest.mark.nightly
def test_rows_equal_records_after_kill_9(kafka_bootstrap: str, tmp_path: Path) -> None:
    process = TrackerProcess(kafka_bootstrap, tmp_path)
    try:
        rounds, per_round = 2, 150
        for turn in range(rounds):
            process.start()
            for index in range(per_round):
                count = turn * per_round + index
                run = f"run-{count % 7}"
                process.send(step_event(run, "nlp", 10 * count), run)
                process.send(log_event(run, "nlp", 5 * count), run)
                queued = JobQueued(
                    job_id=f"job-{count}",
                    spec=job_spec("nlp", "x", 0.1),
                    user="ann",
                    submitted_at=BASE,
                )
                process.send(queued, run)
            process.settled()
            client = process.client()
            # Killed somewhere between two INSERTs: some rows of this round are there, not all.
            wait_until("rows", lambda: number(client, "SELECT count() FROM steps") > turn * 3000)  # noqa: B023
            process.end(signal.SIGKILL)
        garbage = OutRecord(process.names.name(Topic.STEPS), b"k", b"no event", ())
        process.writer.send(garbage)
        process.settled()
        process.start()
        client = process.client()
        total = rounds * per_round
        for table, rows in (("steps", 20), ("logs", 5), (STORIES, 1)):
            wait_until(
                f"{rows * total} rows in {table}",
                lambda: number(client, f"SELECT count() FROM {table}") >= rows * total,  # noqa: B023
            )
            assert number(client, f"SELECT count() FROM {table}") == rows * total
        assert number(client, "SELECT uniqExact(partition, offset, name, step) FROM steps") == (
            20 * total
        )
        assert number(client, "SELECT uniqExact(partition, offset, line) FROM logs") == 5 * total
        assert number(client, f"SELECT uniqExact(topic, partition, offset) FROM {STORIES}") == total
        assert number(client, "SELECT count() FROM run_list") == total
        dlq = TopicPartition(process.names.dlq(process.names.name(Topic.STEPS)), 0)
        wait_until("the refused record", lambda: process.bus.end_offsets([dlq])[dlq] == 1)
        assert process.end() == 0
    finally:
        process.close()
