"""The shell of the quota service: what happens at its start."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from gangline_bus.codec import decode, encode
from gangline_bus.ports import Bus, BusError, BusUnavailable
from gangline_bus.topics import TopicNames
from gangline_quota.state import TEAMS_FILE_USER
from gangline_schemas.catalog import Topic
from gangline_schemas.envelope import Envelope, derived_id
from gangline_schemas.events.quota import TeamConfigured
from gangline_schemas.events.requests import TeamConfigureRequested
from gangline_schemas.job import TeamConfig

PUBLISH_TIMEOUT_S = 30.0


def team_request(team: TeamConfig, at: datetime) -> Envelope:
    """The request that configures a team of the file; the same id for the same limits."""
    return Envelope(
        id=derived_id(TEAMS_FILE_USER, team.encode().decode()),
        source=f"/gangline/{TEAMS_FILE_USER}",
        time=at,
        subject=team.team,
        data=TeamConfigureRequested(config=team, user=TEAMS_FILE_USER),
    )


def publish_teams(bus: Bus, names: TopicNames, teams: tuple[TeamConfig, ...], at: datetime) -> None:
    """Ask for each team of the file. Raises BusError unless all of it is safe on the bus."""
    lost: list[BusError] = []
    writer = bus.writer()
    for team in teams:
        record = encode(team_request(team, at), topic=names.name(Topic.REQUESTS))
        writer.send(record, lambda error: lost.append(error) if error is not None else None)
    waiting = writer.flush(PUBLISH_TIMEOUT_S)
    writer.close()
    if lost:
        raise lost[0]
    if waiting:
        raise BusUnavailable(f"{waiting} team requests were not written in {PUBLISH_TIMEOUT_S} s")


def wait_for_teams(
    bus: Bus, names: TopicNames, teams: tuple[TeamConfig, ...], stopping: Callable[[], bool]
) -> bool:
    """Read the own log until each team of the file is configured; False when stopped before.

    Until then a job of such a team would be rejected for ever, so nobody should be told that the
    platform is up. Raises BusError.
    """
    missing = set(teams)
    reader = bus.reader("teams")
    places = names.places(bus, Topic.QUOTA)
    reader.assign(bus.start_offsets(places))
    try:
        while missing and not stopping():
            for record in reader.poll(1000, 0.2):
                event = decode(record).data
                if isinstance(event, TeamConfigured):
                    missing.discard(event.config)
    finally:
        reader.close()
    return not missing
