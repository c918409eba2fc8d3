"""`gangline replay`: what was, by the log alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gangline.commands.list_options import parse_time
from gangline.errors import CliError, ExitCode
from gangline.replay.at_time import cluster_at, cluster_of
from gangline_bus import kafka
from gangline_bus.codec import encode
from gangline_bus.fold import Folded
from gangline_bus.memory import Broker, MemoryBus
from gangline_bus.ports import BusUnavailable
from gangline_bus.topics import TopicNames, create_topics
from gangline_scheduler.core.state import State
from gangline_schemas.base import Event
from gangline_schemas.catalog import Topic
from gangline_schemas.envelope import Envelope, LogPosition
from gangline_schemas.events.quota import DrainAdmitted
from golden.scenario import START, Scenario
from support.builders.scheduler import Cluster, node
from support.harnesses.cli_run import Runner

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
    write(broker, [(logged.at, logged.event) for logged in scenario.logs["scheduler"]])
    return broker, seen


@pytest.fixture
def on_the_bus(lived: Lived, monkeypatch: pytest.MonkeyPatch) -> Connect:
    """The command reads this log."""

    def connect(*_: object, **__: object) -> MemoryBus:
        return ClosingBus(lived[0], "replay")

    monkeypatch.setattr(kafka, "KafkaBus", connect)
    monkeypatch.setenv("GANGLINE_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    return connect


def test_jobs_and_queue_are_those_of_the_time(lived: Lived, on_the_bus: Connect) -> None:
    for at, held, waiting in lived[1]:
        past = cluster_at(on_the_bus(), NAMES, at)
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
    assert f"{len(held)} jobs run, {waiting} waiting" in " ".join(ran.out.split())
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
    assert parse_time(text, NOW) == moment


@pytest.mark.parametrize("text", ["yesterday", "-2", "2h", "-99999999999d", "2026-11-22", ""])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(CliError, match="--at: ") as refused:
        parse_time(text, NOW)
    assert refused.value.code is ExitCode.USAGE


def write(broker: Broker, logged: Sequence[tuple[datetime, Event]], first: int = 0) -> None:
    """A log of the scheduler on the bus; its numbers begin with `first`."""
    bus = broker.connect("scheduler")
    create_topics(bus, NAMES)
    out = [
        encode(
            Envelope(f"e{seq}", "/t", at, "s", event, position=LogPosition(0, 1, seq)),
            topic=NAMES.name(Topic.SCHEDULING),
            key="0",
            partition=0,
        )
        for seq, (at, event) in enumerate(logged, first)
    ]
    bus.transactional_writer("gangline.scheduler.0").commit(out, {}, "g")


@pytest.fixture
def two_jobs(monkeypatch: pytest.MonkeyPatch) -> datetime:
    """A log on the bus: of two jobs the longer was first, the third one still waits."""
    cluster = Cluster(node(gpus=8))
    cluster.run("long", 8, expected_runtime_hours=2)
    cluster.tick(60)
    for job_id, hours in (("longer", 1.0), ("shorter", 0.1)):
        cluster.submit(job_id, 8, expected_runtime_hours=hours)
    for job_id, seconds in (("long", 600), ("longer", 300)):
        cluster.tick(seconds)
        cluster.exit(job_id)
        cluster.start("longer" if job_id == "long" else "shorter")
    cluster.tick(60)
    cluster.submit("last")
    broker = Broker()
    write(broker, [(at, decision.event) for decision, at in cluster.log])
    monkeypatch.setattr(kafka, "KafkaBus", lambda *_, **__: ClosingBus(broker, "replay"))
    monkeypatch.setenv("GANGLINE_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    return cluster.now


def test_a_policy_beside_what_happened(
    two_jobs: datetime, gangline: Runner, tmp_path: Path
) -> None:
    drawn = tmp_path / "p.svg"
    ran = gangline("replay", "--policy", "fair,sjf", "--picture", str(drawn))
    assert ran.code == ExitCode.DONE, ran.err
    assert max(map(len, ran.out.splitlines())) <= 80
    assert ran.out.splitlines()[2].split() == ["RECORDED", "FAIR", "SJF"]
    assert "fair: 0 of 4 jobs start at another time" in ran.out
    assert "sjf: 2 of 4 jobs start at another time" in ran.out
    assert "sjf" in drawn.read_text()


def test_the_figures_as_json(two_jobs: datetime, gangline: Runner) -> None:
    found = gangline("replay", "--policy", "sjf", "--json").json
    assert [column["policy"] for column in found["policies"]] == ["recorded", "sjf"]
    starts = {entry["job_id"]: entry for entry in found["differences"]["sjf"]["most"]}
    assert starts["shorter"]["waited_s"] == 600 + 300
    assert starts["shorter"]["would_wait_s"] == 600
    assert starts["longer"]["would_wait_s"] == 600 + 360
    assert {job["job_id"]: job["allocated_gpus"] for job in found["not_ended"]} == {
        "shorter": 8, "last": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--policy", "best"], ExitCode.USAGE, "'best' is not known"),
        (["--policy", "fair+preempt=maybe"], ExitCode.USAGE, "'preempt=maybe' is no setting"),
        (["--policy", " , "], ExitCode.USAGE, "no policy is named"),
        ([], ExitCode.USAGE, "give --at or --policy"),
        (["--at", "-1h", "--policy", "fair"], ExitCode.USAGE, "give --at or --policy"),
        (["--at", "-1h", "--from", "-2h"], ExitCode.USAGE, "--from goes with --policy"),
        (["--policy", "fair", "--from", "soon"], ExitCode.USAGE, "--from: 'soon' is no time"),
        (["--policy", "fair", "--picture", "p.doc"], ExitCode.USAGE, "p.doc: name a .png"),
        (["--policy", "fair", "--until", "2001-01-01"], ExitCode.NOT_FOUND, "decided nothing by"),
    ],
)
def test_what_cannot_be_compared(
    options: list[str], code: int, said: str, two_jobs: datetime, gangline: Runner
) -> None:
    ran = gangline("replay", *options)
    assert (ran.code, ran.out) == (code, "")
    assert said in " ".join(ran.err.split())


def test_an_unknown_policy_lists_those_there_are(two_jobs: datetime, gangline: Runner) -> None:
    ran = gangline("replay", "--policy", "best")
    assert all(name in ran.err for name in ("fair", "drf", "short", "fifo", "sjf", "+reservation"))


def test_a_range_in_which_nobody_submitted(two_jobs: datetime, gangline: Runner) -> None:
    later = (two_jobs + timedelta(seconds=1)).isoformat()
    ran = gangline("replay", "--policy", "fair", "--from", later)
    assert ran.code == ExitCode.NOT_FOUND
    assert "no job was submitted from" in " ".join(ran.err.split())


def test_an_empty_log_and_one_without_its_beginning(
    two_jobs: datetime, gangline: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker()
    monkeypatch.setattr(kafka, "KafkaBus", lambda *_, **__: ClosingBus(broker, "replay"))
    create_topics(broker.connect("s"), NAMES)
    ran = gangline("replay", "--policy", "fair")
    assert (ran.code, "the log is empty" in ran.err) == (ExitCode.NOT_FOUND, True)
    cluster = Cluster(node())
    write(broker, [(at, decision.event) for decision, at in cluster.log], first=7)
    ran = gangline("replay", "--policy", "fair")
    assert ran.code == ExitCode.TOOL_ERROR
    assert "seq is 7, expected 0" in " ".join(ran.err.split())
    assert "its beginning is gone" in " ".join(ran.err.split())


def test_nodes_that_took_no_gangs_are_shown_with_the_reason(
    two_jobs: datetime, gangline: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = (node(name, release=release) for name, release in (("old", "0.2.0"), ("new", "1.0")))
    cluster = Cluster(old, new, node("both", release="0.2.0"), oldest_agents="0.3.0")
    cluster.give(DrainAdmitted(node_id="both", drain=True, user="ada"))
    broker = Broker()
    write(broker, [(at, decision.event) for decision, at in cluster.log])
    monkeypatch.setattr(kafka, "KafkaBus", lambda *_, **__: ClosingBus(broker, "replay"))
    ran = gangline("replay", "--at", cluster.now.isoformat(), "--json")
    found = {past["node_id"]: past["status"] for past in json.loads(ran.out)["nodes"]}
    assert found == {"old": "outdated", "new": "ready", "both": "drained"}


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


def test_jobs_without_gpus_are_in_the_queue_and_run_with_their_nodes() -> None:
    cluster = Cluster(node("n1", 2, cpus=8, ports=tuple(range(7001, 7020))))
    for name in ("runs", "waits"):
        cluster.submit(name, resources={"gpus": 0, "cpus": 5, "memory_gb": 1})
    past = cluster_of(Folded(cluster.state, next_seq=len(cluster.log)), cluster.now)
    shown = {job.job_id: (job.position, [part.node_id for part in job.allocation], job.gpus)
             for job in past.jobs}  # fmt: skip
    assert shown == {"runs": (None, ["n1"], 0), "waits": (1, [], 0)}
    assert [(one.gpus_used, one.jobs) for one in past.nodes] == [(0, ("runs",))]
