"""The live view as a real process over real Kafka: what it publishes, and that it keeps going."""

from __future__ import annotations

import signal
import time
import uuid
from collections.abc import Iterator

import pytest

from gangline_bus.codec import UndecodableError, decode
from gangline_bus.ports import OutRecord, Reader, Record
from gangline_schemas.catalog import Topic
from gangline_schemas.events.progress import RunProgress
from gangline_schemas.events.steps import WorkerStep
from support.attacks.hostile_writer import KEY, HostileWriter, attributes
from support.harnesses.tracker_process import TrackerProcess
from support.waiting import wait_until

GARBAGE = b"nlp/run-z"


class Watched:
    """A live view, and all that it published so far, in order. Each test has a `run` of its own."""

    def __init__(self, view: TrackerProcess) -> None:
        self.view = view
        self.run = ""
        self.seen: list[RunProgress] = []
        self.records: list[Record] = []
        self._reader: Reader = view.bus.reader("watch")
        self._reader.assign(dict.fromkeys(view.names.places(view.bus, Topic.PROGRESS), 0))

    def report(
        self, number: int, *, run: str | None = None, attempt: int = 1, **metrics: float
    ) -> None:
        """A step of rank 0 that ends now."""
        run = run or self.run
        now_ms = int(time.time() * 1000)
        event = WorkerStep(
            run_id=run, team="nlp", attempt=attempt, rank=0, step=(number,), time_ms=(now_ms,),
            metrics={"loss": (4.0 - number / 100,), **{k: (v,) for k, v in metrics.items()}},
        )  # fmt: skip
        self.view.send(event, run)
        self.view.settled()

    def newest(self, run: str | None = None) -> tuple[int, int] | None:
        """The attempt and the step that were published last of a run."""
        run = run or self.run
        for record in self._reader.poll(1000, 0.05):
            if record.key == GARBAGE:
                continue
            self.records.append(record)
            event = decode(record).data
            assert isinstance(event, RunProgress)
            self.seen.append(event)
        found = [(event.attempt, event.step) for event in self.seen if event.run_id == run]
        assert found == sorted(found), "it fell back"
        return found[-1] if found else None

    def close(self) -> None:
        self._reader.close()
        self.view.close()


@pytest.fixture(scope="module")
def installed(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("live")
    found = Watched(TrackerProcess(kafka_bootstrap, folder, module="gangline_tracker.live"))
    yield found
    found.close()


@pytest.fixture
def watched(installed: Watched) -> Watched:
    """It runs, whatever the test before has left."""
    installed.run = f"run-{uuid.uuid4().hex[:8]}"
    if not installed.view.alive():
        installed.view.start()
    return installed


def test_it_announces_its_release(watched: Watched) -> None:
    assert watched.view.announced() == {"live-view"}


def test_steps_become_progress_at_most_once_a_second(watched: Watched) -> None:
    watched.view.writer.send(OutRecord(watched.view.names.name(Topic.STEPS), b"x", b"no event"))
    other = f"{watched.run}-b"
    began = time.monotonic()
    for number in range(40):
        watched.report(number, tokens_per_s=1000.0, step_s=0.5, data_wait_s=0.05)
        watched.report(number, run=other)
        time.sleep(0.05)  # a pace, not a wait: 20 steps a second
    took_s = time.monotonic() - began
    wait_until("the last step", lambda: watched.newest() == (1, 39))
    wait_until("the other run", lambda: watched.newest(other) == (1, 39))
    mine = [event for event in watched.seen if event.run_id == watched.run]
    assert len(mine) <= took_s + 3
    last = mine[-1]
    assert (last.team, last.metrics["loss"], last.tokens_per_s) == ("nlp", 3.61, 1000.0)
    assert last.data_wait_share == pytest.approx(0.1)
    assert last.step_s is not None
    keys = {f"nlp/{run}".encode() for run in (watched.run, other)}
    assert keys <= {record.key for record in watched.records}
    assert watched.view.end() == 0


def test_a_step_just_before_the_end_is_published(watched: Watched) -> None:
    for number in range(3):
        watched.report(number)
    assert watched.view.end() == 0
    watched.view.start()
    wait_until("the last step", lambda: watched.newest() == (1, 2))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_restart_loses_no_last_step_and_does_not_fall_back(
    watched: Watched, number: signal.Signals
) -> None:
    for step in range(1, 30):
        watched.report(step)
    watched.report(9, attempt=2)
    wait_until("the second attempt", lambda: watched.newest() == (2, 9))
    for step in range(10, 15):
        watched.report(step, attempt=2)
    watched.view.end(number)
    watched.report(15, attempt=2)
    watched.report(99, attempt=1)
    watched.view.start()
    wait_until("what came meanwhile", lambda: watched.newest() == (2, 15))
    watched.report(16, attempt=2)
    wait_until("the next step", lambda: watched.newest() == (2, 16))
    assert watched.view.end() == 0
    assert watched.newest() == (2, 16), "nothing older was published last"


HOSTILE = {
    "a header whose name is no text": lambda it: it.raw_header(b"\xff\xfe", times=50),
    "a time before the year 1": lambda it: it.send(b"{}", at_ms=-(10**17), codec="zstd"),
    "a value of 50 MB": lambda it: it.send(b'{"x":"' + b"y" * 50_000_000, codec="zstd"),
    "a batch of 150 MB": lambda it: it.send(b"y" * 30_000_000, times=5, codec="zstd"),
    "no value": lambda it: it.send(None),
}


def test_no_hostile_record_ends_it_nor_keeps_it_from_starting_again(watched: Watched) -> None:
    pid = watched.view.pid
    run = KEY.decode()
    watched.report(1, run=run)
    wait_until("the step before", lambda: watched.newest(run) == (1, 1))
    topic = watched.view.names.name(Topic.STEPS)
    writer = HostileWriter(watched.view.bootstrap, topic, attributes("worker.step"))
    for number, (what, write) in enumerate(HOSTILE.items(), start=2):
        write(writer)
        watched.report(number, run=run)
        wait_until(f"the step behind {what}", lambda: watched.newest(run) == (1, number))  # noqa: B023
    assert watched.view.alive()
    assert watched.view.pid == pid
    watched.view.end(signal.SIGKILL)
    watched.view.start()
    watched.report(99, run=run)
    wait_until("the step after a restart", lambda: watched.newest(run) == (1, 99))
    assert watched.view.alive()


def test_garbage_in_what_was_published_does_not_keep_it_from_starting(watched: Watched) -> None:
    watched.report(1)
    wait_until("a step", lambda: watched.newest() == (1, 1))
    watched.view.end()
    name = watched.view.names.name(Topic.PROGRESS)
    garbage = OutRecord(name, GARBAGE, b"no event")
    with pytest.raises(UndecodableError):
        decode(Record(name, 0, 0, garbage.key, garbage.value, (), 0))
    watched.view.writer.send(garbage)
    watched.view.settled()
    watched.view.start()
    assert watched.view.alive()
