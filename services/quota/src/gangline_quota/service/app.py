"""The shell of the quota service: what happens at its start."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from gangline_bus.codec import decode, encode
from gangline_bus.one_record import write_one
from gangline_bus.ports import Bus
from gangline_bus.topics import TopicNames
from gangline_quota.core.state import TEAMS_FILE_USER
from gangline_schemas.catalog import Topic
from gangline_schemas.envelope import Envelope, derived_id
from gangline_schemas.events.admin import TeamsConfigureRequested
from gangline_schemas.events.quota import RequestRefused, TeamConfigured
from gangline_schemas.team_limits import TeamConfig

PUBLISH_TIMEOUT_S = 30.0


def teams_request(teams: tuple[TeamConfig, ...], at: datetime) -> Envelope:
    """The request that configures the teams of the file, all or none; same id for same limits."""
    return Envelope(
        id=_request_id(teams),
        source=f"/gangline/{TEAMS_FILE_USER}",
        time=at,
        subject=TEAMS_FILE_USER,
        data=TeamsConfigureRequested(teams=teams, user=TEAMS_FILE_USER),
    )


def _request_id(teams: tuple[TeamConfig, ...]) -> str:
    return derived_id(TEAMS_FILE_USER, *(team.encode().decode() for team in teams))


def publish_teams(bus: Bus, names: TopicNames, teams: tuple[TeamConfig, ...], at: datetime) -> None:
    """Ask for the teams of the file, if there are any. Raises BusError unless it is on the bus."""
    if not teams:
        return
    record = encode(teams_request(teams, at), topic=names.name(Topic.ADMIN))
    write_one(bus, record, PUBLISH_TIMEOUT_S)


def wait_for_teams(
    bus: Bus,
    names: TopicNames,
    teams: tuple[TeamConfig, ...],
    stopping: Callable[[], bool],
    refused: Callable[[str], None] = lambda _: None,
) -> bool:
    """Read the own log until each team of the file is configured; False when stopped before.

    Until then a job of such a team would be rejected for good, so the platform must not report
    itself up. `refused` is called with the reason why the file was refused. A change of another
    team may remove that reason. Raises BusError.
    """
    request_id = _request_id(teams)
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
                elif isinstance(event, RequestRefused) and event.request_id == request_id:
                    refused(event.reason)
    finally:
        reader.close()
    return not missing
