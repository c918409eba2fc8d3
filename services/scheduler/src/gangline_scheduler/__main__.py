"""`python -m gangline_scheduler`: the scheduler. Start a second one and it stands by."""

from __future__ import annotations

from gangline_scheduler.core.decide import Scheduler
from gangline_scheduler.core.snapshot import codec
from gangline_scheduler.service.config import SchedulerSettings
from gangline_service.deciding import run_decider


def main() -> None:
    """Decide until the process is asked to stop."""
    settings = SchedulerSettings.load()
    scheduler = Scheduler(settings.limits(), settings.policy())
    run_decider("scheduler", settings, scheduler, codec(scheduler.initial))


if __name__ == "__main__":
    main()
