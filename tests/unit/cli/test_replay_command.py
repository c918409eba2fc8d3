"""`gangline replay`: what was, by the log alone."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from cli_run import Runner
from gangline.commands import replay
from gangline.errors import CliError, ExitCode
from gangline_bus.codec import encode
from gangline_bus.memory import Broker, MemoryBus
from gangline_bus.ports import BusUnavailable
from gangline_bus.topics import TopicNames, create_topics
from gangline_scheduler.state import State
from gangline_schemas.catalog import Topic
from gangline_schemas.envelope import Envelope, LogPosition
from golden.scenario import START, Scenario

Lived = tuple[Broker, list[tuple[datetime, dict[str, tuple[str, ...]], int]]]
Connect = Callable[..., MemoryBus]
NAMES = TopicNames()
NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


class ClosingBus(MemoryBus):
    """As the command takes it."""

    def close(self) -> None:
        """Nothing is held."""


@pytest.fixture(scope="module")
def lived() -> Lived:
    """A log on a bus, and at some times: which nodes each job held, and how many waited."""
    scenario, seen = Scenario(3), []
    for events in (50, 150, 300):
        scenario.run(events)
        state: State = scenario.states["scheduler"]
        held = {
            job_id: tuple(part.node_id for part in job.gang.nodes)
            for job_id, job in state.jobs.items()
            if job.gang is not None
        }
        seen.append((scenario.now, held, len(state.pending)))
    broker = Broker()
    bus = broker.connect("scheduler")
    create_topics(bus, NAMES)
    topic = NAMES.name(Topic.SCHEDULING)
    out = []
    for seq, logged in enumerate(scenario.logs["scheduler"]):
        position = LogPosition(0, 1, seq)
        envelope = Envelope(
            f"e{seq}", "/t", logged.at, logged.subject, logged.event, position=position
        )
        out.append(encode(envelope, topic=topic, key="0", partition=0))
    bus.transactional_writer("gangline.scheduler.0").commit(out, {}, "g")
    return broker, seen


@pytest.fixture
def on_the_bus(lived: Lived, monkeypatch: pytest.MonkeyPatch) -> Connect:
    """The command reads this log."""

    def connect(*_: object, **__: object) -> MemoryBus:
        return ClosingBus(lived[0], "replay")

    monkeypatch.setattr(replay, "KafkaBus", connect)
    monkeypatch.setenv("GANGLINE_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    return connect


def test_jobs_and_queue_are_those_of_the_time(lived: Lived, on_the_bus: Connect) -> None:
    for at, held, waiting in lived[1]:
        past = replay.past_at(on_the_bus(), NAMES, at)
        assert {
            job.job_id: tuple(part.node_id for part in job.allocation)
            for job in past.jobs
            if job.allocation
        } == held
        positions = [job.position for job in past.jobs if job.position is not None]
        assert positions == list(range(1, waiting + 1))
        assert {(node.node_id, job_id) for node in past.nodes for job_id in node.jobs} >= {
            (node_id, job_id) for job_id, nodes in held.items() for node_id in nodes
        }


def test_the_tables_fit(lived: Lived, on_the_bus: Connect, gangline: Runner) -> None:
    at, held, waiting = lived[1][-1]
    ran = gangline("replay", "--at", at.isoformat())
    assert ran.code == ExitCode.DONE
    assert max(map(len, ran.out.splitlines())) <= 80
    assert f"{len(held)} jobs with GPUs, {waiting} waiting" in " ".join(ran.out.split())
    for job_id in held:
        assert job_id in ran.out


def test_json_holds_all(lived: Lived, on_the_bus: Connect, gangline: Runner) -> None:
    at, held, _ = lived[1][-1]
    found = gangline("replay", "--json", "--at", at.isoformat()).json
    assert {job["job_id"] for job in found["jobs"] if job["allocation"]} == held.keys()
    assert len(found["nodes"]) == 12
    assert found["events"] > 0


def test_before_the_first_decision(on_the_bus: Connect, gangline: Runner) -> None:
    ran = gangline("replay", "--at", (START - timedelta(days=1)).isoformat())
    assert ran.code == ExitCode.NOT_FOUND
    assert "had decided nothing by" in ran.err


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("-90s", NOW - timedelta(seconds=90)),
        ("-1.5h", NOW - timedelta(minutes=90)),
        ("-2d", NOW - timedelta(days=2)),
        ("2026-11-21T09:00", NOW - timedelta(hours=3)),
        ("2026-11-21T10:00:00+01:00", NOW - timedelta(hours=3)),
    ],
)
def test_times(text: str, moment: datetime) -> None:
    assert replay.parse_time(text, NOW) == moment


@pytest.mark.parametrize("text", ["yesterday", "-2", "2h", "-99999999999d", "2026-11-22", ""])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(CliError, match="--at: ") as refused:
        replay.parse_time(text, NOW)
    assert refused.value.code is ExitCode.USAGE


def test_a_shard_that_is_not_there(on_the_bus: Connect, gangline: Runner) -> None:
    ran = gangline("replay", "--at", "2026-11-21", "--shard", "9")
    assert ran.code == ExitCode.USAGE
    assert "there is no shard 9" in ran.err


def test_without_a_platform(gangline: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GANGLINE_BOOTSTRAP_SERVERS", raising=False)
    ran = gangline("replay", "--at", "-1h")
    assert ran.code == ExitCode.TOOL_ERROR
    assert "--kafka" in ran.err


def test_a_bus_that_is_away(
    on_the_bus: object, gangline: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise BusUnavailable("no broker answers")

    monkeypatch.setattr(MemoryBus, "partitions", away)
    ran = gangline("replay", "--at", "2026-11-21T09:00")
    assert ran.code == ExitCode.TOOL_ERROR
    assert "no broker answers" in ran.err
    assert "Traceback" not in ran.err
