"""`python -m gangline_alerts`: the alerts service."""

from __future__ import annotations

from functools import partial

import structlog

from gangline_alerts.core.snapshot import codec
from gangline_alerts.service.alerts_file import AlertsFile, WatchedFile, read_alerts
from gangline_alerts.service.config import AlertSettings
from gangline_alerts.service.delivery import Deliverer, share_of
from gangline_alerts.service.measuring import MeasuredDecider
from gangline_alerts.service.scheduler_watch import SchedulerWatch
from gangline_alerts.service.targets import Secrets
from gangline_bus.ports import Bus
from gangline_bus.topics import TopicNames
from gangline_service.config_file import ConfigFileError
from gangline_service.deciding import connect, group_of, run_decider
from gangline_service.health import Health
from gangline_service.lifecycle import Context
from gangline_service.settings import ServiceSettings, cannot_start

log = structlog.get_logger("gangline_alerts")


def tell(health: Health, why: str) -> None:
    """Say in the log and on the health page why no rule is judged; empty: they are judged."""
    if why:
        log.warning("alerts are not judged", why=why)
    health.set("input", not why, why)


def main() -> None:
    """Read the settings and the file of alerts, then decide until a signal stops the process."""
    settings = AlertSettings.load()
    file, watched = AlertsFile(), None
    if settings.alerts_file is not None:
        try:
            watched = WatchedFile(settings.alerts_file)
            file = read_alerts(settings.alerts_file)
        except ConfigFileError as error:
            cannot_start("GANGLINE_ALERTS_FILE", error)
    decider = MeasuredDecider(file.rules, file.core(), settings.timing())
    deliverer = Deliverer(file.receivers, Secrets(settings.alert_secrets_dir))

    def renew() -> None:
        found = None if watched is None else watched.renewed()
        if found is not None:
            decider.rules, decider.receivers = found.rules, found.core()
            deliverer.renew(found.receivers)

    decider.renew = renew

    def on_start(_bus: Bus, context: Context[ServiceSettings]) -> None:
        decider.export(context.meter)
        decider.tell = partial(tell, context.health)
        tell(context.health, "")
        bus = connect(settings, "alerts.watch")
        group = group_of(TopicNames(settings.topic_prefix), "scheduler")
        watch = SchedulerWatch(lambda: bus.members(group))
        decider.scheduler_away = watch.away_since
        watch.start(context.stopping)

    run_decider(
        "alerts",
        settings,
        decider,
        codec(),
        executor=deliverer,
        share=share_of,
        on_start=on_start,
    )


if __name__ == "__main__":
    main()
