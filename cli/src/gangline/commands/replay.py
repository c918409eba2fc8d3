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
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gangline.commands.list_options import parse_time
from gangline.commands.simulate import check_ending
from gangline.errors import CliError, ExitCode
from gangline.local.client import default_data_dir, no_client, read_client
from gangline.output import Output
from gangline.session import DataDir, Json, target_of

if TYPE_CHECKING:
    from gangline_service.settings import ServiceSettings


def replay(  # noqa: PLR0917 - options of a command are keywords
    context: typer.Context,
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="TIME", help="ISO 8601 (UTC without a zone), or -2h."),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option("--policy", help="Policies, separated by commas; an unknown name lists all."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--from", metavar="TIME", help="With --policy: jobs submitted since then."),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="TIME", help="With --policy: the log until then."),
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option("--picture", help="With --policy: plot of GPUs and queue; .png or .svg."),
    ] = None,
    kafka: Annotated[
        str | None,
        typer.Option(help="HOST:PORT of Kafka [GANGLINE_BOOTSTRAP_SERVERS, else the local one]."),
    ] = None,
    shard: Annotated[int, typer.Option(min=0, help="The scheduler's shard: a pool of nodes.")] = 0,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Show the platform at a past time (--at), or replay its log with another policy (--policy)."""
    target = target_of(context, data_dir=data_dir, json=json)
    out = Output(json=target.json)
    now = datetime.now(UTC)
    _check_options(at, policy, since, until, picture)
    # They bring the scheduler and Kafka along, which no other command needs.
    from gangline.replay import at_time, policies
    from gangline.replay.log import read_log
    from gangline_bus.kafka import KafkaBus
    from gangline_bus.ports import BusError
    from gangline_bus.topics import TopicNames

    moment = None if at is None else parse_time(at, now)
    names = [] if policy is None else policies.policy_names(policy)
    first = None if since is None else parse_time(since, now, "--from")
    last = None if until is None else parse_time(until, now, "--until")
    settings = _settings(kafka, target.data_dir)
    topics = TopicNames(settings.topic_prefix)
    bus = KafkaBus(
        settings.bootstrap_servers,
        client=f"{topics.prefix}gangline.replay",
        settings=settings.kafka,
    )
    try:
        if moment is not None:
            at_time.show(out, at_time.cluster_at(bus, topics, moment, shard))
            return
        log = read_log(bus, topics, last, shard)
    except BusError as error:
        raise CliError(
            f"the log cannot be read from {settings.bootstrap_servers}: {error}",
            "is Kafka up? give its address with --kafka",
        ) from None
    finally:
        bus.close()
    policies.show_versus(out, policies.compare(out, log, names, first, last), picture)


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
    if picture is not None:
        check_ending(picture)


def _settings(kafka: str | None, data_dir: Path | None) -> ServiceSettings:
    """Where Kafka is and how to speak to it: GANGLINE_ variables, else the local platform's."""
    from gangline_service.settings import ServiceSettings

    if kafka is not None:
        return ServiceSettings.load(bootstrap_servers=kafka)
    if data_dir is None and os.environ.get("GANGLINE_BOOTSTRAP_SERVERS"):
        return ServiceSettings.load()
    folder = data_dir or default_data_dir()
    client = read_client(folder)
    if client is None:
        raise no_client(folder, "give Kafka's address with --kafka")
    file = {"kafka_file": client.kafka_file} if client.kafka_file else {}
    return ServiceSettings.load(bootstrap_servers=client.bootstrap_servers, **file)
