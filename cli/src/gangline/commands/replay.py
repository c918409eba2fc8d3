"""`gangline replay`: the platform's jobs, queue and allocations as they were at a time.

The scheduler's log is read from Kafka and folded by the scheduler's own code up to that time, so
what is shown is what the scheduler knew then. Nothing is asked of the running services, and
nothing is changed. Cost: the whole log before that time, some 20,000 events a second.
"""

from __future__ import annotations

import os
import re
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
from gangline_bus.fold import Folded, LogBroken, fold_log
from gangline_bus.kafka import KafkaBus
from gangline_bus.ports import Bus, BusError, TopicPartition
from gangline_bus.topics import TopicNames
from gangline_scheduler.decide import Scheduler
from gangline_scheduler.model import Job, Node
from gangline_scheduler.policy.config import Policy
from gangline_scheduler.policy.order import in_order
from gangline_scheduler.state import State
from gangline_schemas.catalog import Topic
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


def replay(
    context: typer.Context,
    at: Annotated[
        str, typer.Option("--at", metavar="TIME", help="ISO 8601 (UTC without a zone), or -2h.")
    ],
    kafka: Annotated[
        str | None,
        typer.Option(help="HOST:PORT of Kafka; else GANGLINE_BOOTSTRAP_SERVERS, else the local."),
    ] = None,
    shard: Annotated[int, typer.Option(min=0, help="Which pool of nodes.")] = 0,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Jobs, queue and allocations as they were at a time: the log, folded up to there."""
    outer = context.obj if isinstance(context.obj, Door) else Door()
    now = datetime.now(UTC)
    moment = parse_time(at, now)
    settings = _settings(kafka, data_dir or outer.data_dir)
    names = TopicNames(settings.topic_prefix)
    bus = KafkaBus(settings.bootstrap_servers, client="gangline.replay", settings=settings.kafka)
    try:
        past = past_at(bus, names, moment, shard)
    finally:
        bus.close()
    show(Output(json=json or outer.json), past)


def parse_time(text: str, now: datetime) -> datetime:
    """A time of ISO 8601, or so long before `now` as in -90s, -15m, -2h, -1d. Raises CliError."""
    ago = _AGO.fullmatch(text)
    try:
        if ago is not None:
            return now - timedelta(seconds=float(ago[1]) * _UNITS_S[ago[2]])
        moment = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise CliError(
            f"--at: {text!r} is no time",
            "give 2026-11-21T14:30, 2026-11-21T14:30:00+01:00, or -15m, -2h, -1d",
            ExitCode.USAGE,
        ) from None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    if moment > now:
        raise CliError(f"--at: {text} has not come yet", "give a time in the past", ExitCode.USAGE)
    return moment.astimezone(UTC)


def past_at(bus: Bus, names: TopicNames, at: datetime, shard: int = 0) -> Past:
    """Fold the scheduler's log up to a time. Raises CliError."""
    place = TopicPartition(names.name(Topic.SCHEDULING), shard)
    try:
        shards = bus.partitions(place.topic)
        if shard >= shards:
            raise CliError(
                f"--shard: there is no shard {shard}", f"give 0 to {shards - 1}", ExitCode.USAGE
            )
        folded = fold_log(bus, Scheduler(), place, until=at)
    except BusError as error:
        raise CliError(
            f"the log cannot be read: {error}", "is Kafka up? give its address with --kafka"
        ) from None
    except LogBroken as error:
        raise CliError(f"the log is broken: {error}") from None
    if not folded.next_seq:
        raise CliError(
            f"the scheduler had decided nothing by {at:%Y-%m-%d %H:%M:%S} UTC",
            "give a later time",
            ExitCode.NOT_FOUND,
        )
    return past_of(folded, at)


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
