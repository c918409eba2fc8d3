"""`python -m gangline_quota`: the quota service."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from functools import partial

from gangline_bus.ports import Bus, BusError
from gangline_bus.topics import TopicNames
from gangline_quota.core.decide import Quota
from gangline_quota.core.snapshot import codec
from gangline_quota.service.app import publish_teams, wait_for_teams
from gangline_quota.service.config import QuotaSettings
from gangline_quota.service.teams_file import read_teams
from gangline_schemas.team_limits import TeamConfig
from gangline_service.config_file import ConfigFileError
from gangline_service.deciding import connect, run_decider
from gangline_service.lifecycle import Context
from gangline_service.settings import ServiceSettings, cannot_start


def main() -> None:
    """Read the settings and the file of teams, then decide until a signal stops the process."""
    settings = QuotaSettings.load()
    teams: tuple[TeamConfig, ...] = ()
    if settings.teams_file is not None:
        try:
            teams = read_teams(settings.teams_file)
        except ConfigFileError as error:
            cannot_start("GANGLINE_TEAMS_FILE", error)
    names = TopicNames(settings.topic_prefix)
    on_start = partial(_start, names=names, teams=teams)
    run_decider("quota", settings, Quota(settings.data_approvals), codec(), on_start=on_start)


def _start(
    bus: Bus,
    context: Context[ServiceSettings],
    *,
    names: TopicNames,
    teams: tuple[TeamConfig, ...],
) -> None:
    publish_teams(bus, names, teams, datetime.now(UTC))
    context.log.info("teams.requested", teams=[team.team for team in teams])
    if teams:
        context.health.set("teams", ok=False, detail="the teams of the file are not configured yet")
        threading.Thread(
            target=_report_teams, args=(context, names, teams), name="teams", daemon=True
        ).start()


def _report_teams(
    context: Context[ServiceSettings], names: TopicNames, teams: tuple[TeamConfig, ...]
) -> None:
    """Be ready once each team of the file is configured. A bus that is away is tried again."""

    def refused(reason: str) -> None:
        context.log.warning("teams.refused", reason=reason)
        context.health.set("teams", ok=False, detail=f"the file of teams was refused: {reason}")

    bus = connect(context.settings, "quota.teams")
    while not context.stopping.is_set():
        try:
            if wait_for_teams(bus, names, teams, context.stopping.is_set, refused):
                context.health.set("teams", ok=True)
                break
        except BusError as error:
            context.log.warning("teams.waiting", error=str(error))
            context.stopping.wait(1.0)
    bus.close()


if __name__ == "__main__":
    main()
