"""`gangline replay`: the platform's own log, as it was or through another policy.

The scheduler's log is read from Kafka.
- `--at`: folded by the scheduler's own code up to that time, so what is shown is what the
  scheduler knew then.
- `--policy`: what came from outside and what each job needed, run in virtual time through the
  scheduler's own decisions under other policies; beside it what really happened.
Nothing is asked of the running services, and nothing is changed. Cost: the whole log before that
time, some 20,000 events a second; for each policy its decisions, at ticks of 1 to 60 s.
"""

from __future__ import annotations

import os
import re
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer
from pydantic import BaseModel

from gangline import render
from gangline.errors import CliError, ExitCode
from gangline.local.platform import default_data_dir, read_client
from gangline.output import Output
from gangline.render import NONE, Column
from gangline.session import DataDir, Door, Json
from gangline_bus.decision import Decision
from gangline_bus.fold import Folded, LogBroken, fold_log
from gangline_bus.kafka import KafkaBus
from gangline_bus.ports import Bus, BusError, TopicPartition
from gangline_bus.topics import TopicNames
from gangline_scheduler.decide import Scheduler
from gangline_scheduler.model import Job, Node
from gangline_scheduler.policy.config import Policy
from gangline_scheduler.policy.order import in_order
from gangline_scheduler.simulator.compare import SHOWN, figures_table, pool_result
from gangline_scheduler.simulator.history import Logged
from gangline_scheduler.simulator.live_policies import RECORDED, known, live_policy
from gangline_scheduler.simulator.picture import ENDINGS, draw
from gangline_scheduler.simulator.versus import NoJobsError, Versus, versus
from gangline_scheduler.state import State
from gangline_schemas.catalog import Topic
from gangline_schemas.events.scheduling import GangMemberChanged, JobWaiting
from gangline_service.settings import ServiceSettings

_AGO = re.compile(r"-(\d+(?:\.\d+)?)([smhd])")
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_RUNNING = (
    Column("JOB", flexible=True),
    Column("TEAM", flexible=True),
    Column("STATE"),
    Column("ATTEMPT", right=True),
    Column("GPUS", right=True),
    Column("HELD", right=True),
    Column("WHERE", flexible=True),
)
_QUEUE = (
    Column("#", right=True),
    Column("JOB", flexible=True),
    Column("TEAM", flexible=True),
    Column("GPUS", right=True),
    Column("PRIO", right=True),
    Column("WAITED", right=True),
    Column("WHY", flexible=True),
)
_DIFFERENCES = (
    Column("JOB", flexible=True),
    Column("TEAM", flexible=True),
    Column("GPUS", right=True),
    Column("WAITED", right=True),
    Column("WOULD HAVE WAITED", right=True),
)
_UNENDED = (
    Column("JOB", flexible=True),
    Column("TEAM", flexible=True),
    Column("GPUS", right=True),
    Column("HELD", right=True),
    Column("ATTEMPTS", right=True),
)
_TELL_EVERY_S = 5.0
_NODES = (
    Column("NODE", flexible=True),
    Column("STATUS"),
    Column("GPUS"),
    Column("RACK", flexible=True),
    Column("JOBS", flexible=True),
)


class PastPart(BaseModel):
    """What a gang held of one node."""

    node_id: str
    gpus: tuple[int, ...]


class PastJob(BaseModel):
    """An active job as it was. `position` is its place in the queue, None with a gang."""

    job_id: str
    team: str
    state: str
    priority: int
    gpus: int
    attempt: int
    submitted_at: datetime
    waiting_since: datetime
    position: int | None = None
    reason: str | None = None
    message: str | None = None
    allocated_at: datetime | None = None
    allocation: tuple[PastPart, ...] = ()


class PastNode(BaseModel):
    """A node as it was."""

    node_id: str
    status: str
    rack: str
    gpus: int
    gpus_used: int
    jobs: tuple[str, ...]


class Past(BaseModel):
    """The platform at a time, after so many events of the scheduler's log."""

    at: datetime
    events: int
    jobs: tuple[PastJob, ...]
    nodes: tuple[PastNode, ...]


def replay(  # noqa: PLR0917 - options of a command are keywords
    context: typer.Context,
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="TIME", help="ISO 8601 (UTC without a zone), or -2h."),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option("--policy", help="Names with commas between; a wrong one lists them."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--from", metavar="TIME", help="--policy: of jobs submitted since."),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="--policy: the log up to then.")
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option("--picture", help="--policy: utilization and queue over time; .png, .svg."),
    ] = None,
    kafka: Annotated[
        str | None,
        typer.Option(help="HOST:PORT of Kafka; else GANGLINE_BOOTSTRAP_SERVERS, else the local."),
    ] = None,
    shard: Annotated[int, typer.Option(min=0, help="Which pool of nodes.")] = 0,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """The platform as it was at a time (--at), or its log through another policy (--policy)."""
    outer = context.obj if isinstance(context.obj, Door) else Door()
    out = Output(json=json or outer.json)
    now = datetime.now(UTC)
    _check_options(at, policy, since, until, picture)
    moment = None if at is None else parse_time(at, now)
    names = [] if policy is None else _names(policy)
    first = None if since is None else parse_time(since, now, "--from")
    last = None if until is None else parse_time(until, now, "--until")
    settings = _settings(kafka, data_dir or outer.data_dir)
    topics = TopicNames(settings.topic_prefix)
    bus = KafkaBus(settings.bootstrap_servers, client="gangline.replay", settings=settings.kafka)
    try:
        if moment is not None:
            show(out, past_at(bus, topics, moment, shard))
            return
        log = read_log(bus, topics, last, shard)
    finally:
        bus.close()
    show_versus(out, compare(out, log, names, first, last), picture)


def _check_options(
    at: str | None,
    policy: str | None,
    since: str | None,
    until: str | None,
    picture: Path | None,
) -> None:
    """One of the two questions, and only its own options. Raises CliError."""
    if (at is None) == (policy is None):
        raise CliError(
            "give --at or --policy, one of them",
            "--at TIME shows the platform as it was; --policy NAME runs its log through a policy",
            ExitCode.USAGE,
        )
    extra = {"--from": since, "--until": until, "--picture": picture}
    wrong = [name for name, value in extra.items() if value is not None]
    if at is not None and wrong:
        raise CliError(f"{wrong[0]} goes with --policy", "leave it out", ExitCode.USAGE)
    if picture is not None and picture.suffix not in ENDINGS:
        raise CliError(f"{picture}: name a {', '.join(ENDINGS)} file", code=ExitCode.USAGE)


def _names(policy: str) -> list[str]:
    """The policies that are named, each once. Raises CliError for one that is not known."""
    named = [name.strip() for name in policy.split(",") if name.strip()]
    if not named:
        raise CliError("--policy: no policy is named", f"there are {known()}", ExitCode.USAGE)
    names = [name for name in dict.fromkeys(named) if name != RECORDED]
    for name in names:
        try:
            live_policy(name)
        except ValueError as error:
            what, _, hint = str(error).partition("; ")
            raise CliError(f"--policy: {what}", hint, ExitCode.USAGE) from None
    return names


def parse_time(text: str, now: datetime, option: str = "--at") -> datetime:
    """A time of ISO 8601, or so long before `now` as in -90s, -15m, -2h, -1d. Raises CliError."""
    ago = _AGO.fullmatch(text)
    try:
        if ago is not None:
            return now - timedelta(seconds=float(ago[1]) * _UNITS_S[ago[2]])
        moment = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise CliError(
            f"{option}: {text!r} is no time",
            "give 2026-11-21T14:30, 2026-11-21T14:30:00+01:00, or -15m, -2h, -1d",
            ExitCode.USAGE,
        ) from None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    if moment > now:
        raise CliError(
            f"{option}: {text} has not come yet", "give a time in the past", ExitCode.USAGE
        )
    return moment.astimezone(UTC)


def past_at(bus: Bus, names: TopicNames, at: datetime, shard: int = 0) -> Past:
    """Fold the scheduler's log up to a time. Raises CliError."""
    folded = _fold(bus, names, Scheduler(), at, shard)
    if not folded.next_seq:
        raise _nothing_decided(at)
    return past_of(folded, at)


def read_log(
    bus: Bus, names: TopicNames, until: datetime | None = None, shard: int = 0
) -> list[Logged]:
    """The events of the scheduler's log up to a time. Raises CliError."""
    reader = _Reader()
    _fold(bus, names, reader, until, shard)
    if not reader.read:
        raise _nothing_decided(until)
    return reader.read


class _Reader(Scheduler):
    """Keeps the events of the log instead of folding them."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[Logged] = []

    def evolve(self, state: State, decision: Decision, at: datetime) -> State:
        """One event more; what no history is read from is left out, as there is much of it."""
        if not isinstance(decision.event, GangMemberChanged | JobWaiting):
            self.read.append(Logged(at, decision.event))
        return state


def _fold(
    bus: Bus, names: TopicNames, decider: Scheduler, until: datetime | None, shard: int
) -> Folded[State]:
    place = TopicPartition(names.name(Topic.SCHEDULING), shard)
    try:
        shards = bus.partitions(place.topic)
        if shard >= shards:
            raise CliError(
                f"--shard: there is no shard {shard}", f"give 0 to {shards - 1}", ExitCode.USAGE
            )
        if bus.start_offsets([place])[place] > 0:
            raise CliError(
                f"the log lacks its beginning: {place.topic} starts at offset "
                f"{bus.start_offsets([place])[place]}",
                "it must be kept for ever: retention.ms=-1, cleanup.policy=delete",
            )
        return fold_log(bus, decider, place, until=until)
    except BusError as error:
        raise CliError(
            f"the log cannot be read: {error}", "is Kafka up? give its address with --kafka"
        ) from None
    except LogBroken as error:
        hint = "its beginning is gone" if str(error).endswith("expected 0") else ""
        raise CliError(f"the log is broken: {error}", hint) from None


def _nothing_decided(by: datetime | None) -> CliError:
    if by is None:
        return CliError("the log is empty", "submit a job first", ExitCode.NOT_FOUND)
    return CliError(
        f"the scheduler had decided nothing by {by:%Y-%m-%d %H:%M:%S} UTC",
        "give a later time",
        ExitCode.NOT_FOUND,
    )


def compare(
    out: Output,
    log: list[Logged],
    names: list[str],
    since: datetime | None = None,
    until: datetime | None = None,
) -> Versus:
    """The log through each of the policies. Raises CliError."""
    told = time.monotonic()

    def tell(name: str, done: float) -> None:
        nonlocal told
        if time.monotonic() - told >= _TELL_EVERY_S:
            told = time.monotonic()
            out.note(f"{name}: {done:.0%}")

    try:
        return versus(log, names, since=since, end=until, tell=tell)
    except NoJobsError:
        begin, end = since or log[0].at, until or log[-1].at
        raise CliError(
            f"no job was submitted from {begin:%Y-%m-%d %H:%M:%S} to {end:%Y-%m-%d %H:%M:%S} UTC",
            f"the log is from {log[0].at:%Y-%m-%d %H:%M:%S} to {log[-1].at:%Y-%m-%d %H:%M:%S} UTC",
            ExitCode.NOT_FOUND,
        ) from None


def show_versus(out: Output, found: Versus, picture: Path | None = None) -> None:
    """One document, or the tables; and the picture."""
    if picture is not None:
        curves = {name: [pool_result(past)] for name, past in found.histories.items()}
        try:
            draw(curves, picture)
        except OSError as error:
            raise CliError(f"cannot write {picture}: {error.strerror}") from None
        out.note(f"picture: {picture}")
    if out.json:
        out.show(found.data(), "")
        return
    first = found.columns[0]
    print(
        f"{found.since:%Y-%m-%d %H:%M:%S} to {found.end:%Y-%m-%d %H:%M:%S} UTC: {first.jobs:,} "
        f"jobs, {first.jct_jobs:,} ended in all columns\n\n{figures_table(found.columns)}"
    )
    for name, differ in found.differences.items():
        print(f"\n{name}: {len(differ):,} of {first.jobs:,} jobs start at another time")
        if differ:
            rows = [
                [job.job_id, job.team, str(job.gpus), _wait(job.waited_s), _wait(job.would_wait_s)]
                for job in differ[:SHOWN]
            ]
            print(render.table(_DIFFERENCES, rows))
    if found.unended:
        print(f"\nnot ended in the log: {len(found.unended):,} jobs")
        print(
            render.table(
                _UNENDED,
                [
                    [job.job_id, job.team, str(job.gpus), str(job.held_gpus), str(job.attempts)]
                    for job in found.unended[:SHOWN]
                ],
            )
        )


def _wait(seconds: float | None) -> str:
    return "no GPUs by the end" if seconds is None else render.duration(seconds)


def past_of(folded: Folded[State], at: datetime) -> Past:
    """What a state says: jobs with GPUs by id, then the queue in its order; nodes by id."""
    state = folded.state
    queue = [job.job_id for job in in_order(Policy().order, lambda: state, at)]
    place = {job_id: number for number, job_id in enumerate(queue, 1)}
    running = sorted(job_id for job_id in state.jobs if job_id not in place)
    return Past(
        at=at,
        events=folded.next_seq,
        jobs=tuple(_job(state.jobs[job_id], place.get(job_id)) for job_id in [*running, *queue]),
        nodes=tuple(_node(node) for _, node in sorted(state.nodes.items())),
    )


def show(out: Output, past: Past) -> None:
    """One document, or the three tables."""
    if out.json:
        out.show(past, "")
        return
    used, gpus = sum(n.gpus_used for n in past.nodes), sum(n.gpus for n in past.nodes)
    held = [job for job in past.jobs if job.position is None]
    queue = [job for job in past.jobs if job.position is not None]
    print(
        f"{past.at:%Y-%m-%d %H:%M:%S} UTC, after {past.events:,} events\n"
        f"{used} of {gpus} GPUs held, {len(held)} jobs with GPUs, {len(queue)} waiting"
    )
    for title, columns, rows in (
        ("jobs", _RUNNING, [_running_row(job, past.at) for job in held]),
        ("queue", _QUEUE, [_queue_row(job, past.at) for job in queue]),
        ("nodes", _NODES, [_node_row(node) for node in past.nodes]),
    ):
        print(f"\n{title}: {'' if rows else 'none'}".rstrip())
        if rows:
            print(render.table(columns, rows))


def _settings(kafka: str | None, data_dir: Path | None) -> ServiceSettings:
    """Where Kafka is and how to speak to it: GANGLINE_ variables, else the local platform's."""
    if kafka is not None:
        return ServiceSettings.load(bootstrap_servers=kafka)
    if data_dir is None and os.environ.get("GANGLINE_BOOTSTRAP_SERVERS"):
        return ServiceSettings.load()
    folder = data_dir or default_data_dir()
    client = read_client(folder)
    if client is None:
        raise CliError(
            f"no platform is known: there is no {folder / 'client.json'}",
            "start one with `gangline up`, or give Kafka's address with --kafka",
        )
    return ServiceSettings.load(bootstrap_servers=client.bootstrap_servers)


def _job(job: Job, position: int | None) -> PastJob:
    gang, waiting = job.gang, job.waiting if position is not None else None
    return PastJob(
        job_id=job.job_id,
        team=job.team,
        state=job.state.value,
        priority=job.priority,
        gpus=job.gpus if gang is None else gang.world_size,
        attempt=job.attempt,
        submitted_at=job.submitted_at,
        waiting_since=job.waiting_since,
        position=position,
        reason=None if waiting is None else waiting.code,
        message=None if waiting is None else waiting.message,
        allocated_at=None if gang is None else gang.allocated_at,
        allocation=tuple(
            PastPart(node_id=part.node_id, gpus=part.gpus)
            for part in (() if gang is None else gang.nodes)
        ),
    )


def _node(node: Node) -> PastNode:
    status = node.down or ("drained" if node.drained else "ready")
    return PastNode(
        node_id=node.info.node_id,
        status=status,
        rack=node.info.rack,
        gpus=len(node.info.gpus),
        gpus_used=sum(len(hold.gpus) for _, hold in node.holds),
        jobs=tuple(job_id for job_id, _ in node.holds),
    )


def _running_row(job: PastJob, at: datetime) -> list[str]:
    where = ", ".join(f"{part.node_id}:{','.join(map(str, part.gpus))}" for part in job.allocation)
    return [
        job.job_id,
        job.team,
        job.state,
        str(job.attempt),
        str(job.gpus),
        render.age(job.allocated_at, at),
        where or NONE,
    ]


def _queue_row(job: PastJob, at: datetime) -> list[str]:
    return [
        str(job.position),
        job.job_id,
        job.team,
        str(job.gpus),
        str(job.priority),
        render.age(job.waiting_since, at),
        job.message or NONE,
    ]


def _node_row(node: PastNode) -> list[str]:
    return [
        node.node_id,
        node.status,
        f"{node.gpus_used} of {node.gpus}",
        node.rack,
        ", ".join(node.jobs) or NONE,
    ]
