"""`python -m gangline_scheduler`: the scheduler. Start a second one and it stands by."""

from __future__ import annotations

from gangline_bus.ports import Bus
from gangline_scheduler.core.decide import Scheduler
from gangline_scheduler.core.snapshot import codec
from gangline_scheduler.core.state import State
from gangline_scheduler.service.config import SchedulerSettings
from gangline_scheduler.service.door import Desk, Door, TlsFileError, tls_of
from gangline_schemas.features import oldest_accepted
from gangline_service.asking import Asked
from gangline_service.deciding import run_decider
from gangline_service.lifecycle import Context
from gangline_service.settings import ServiceSettings
from gangline_service.tokens import TokenBook, TokenFileError


def main() -> None:
    """Decide until told to stop."""
    settings = SchedulerSettings.load()
    scheduler = Scheduler(settings.limits(), settings.policy(), oldest_agents=oldest_accepted())
    asked: Asked[State] = Asked()

    def open_door(_: Bus, context: Context[ServiceSettings]) -> None:
        door = door_of(settings, Desk(asked, scheduler, settings.policy()))
        if door is not None:
            door.start()
            context.log.info("scheduler.answers", url=door.address.url)

    run_decider(
        "scheduler", settings, scheduler, codec(scheduler.initial), on_start=open_door, asked=asked
    )


def door_of(settings: SchedulerSettings, desk: Desk) -> Door | None:
    """The door that the settings ask for. Raises SystemExit that says what is wrong with them."""
    if settings.question_port is None or settings.tokens_file is None:
        return None
    try:
        return Door(
            desk,
            TokenBook.load(settings.tokens_file),
            instance=settings.instance_id,
            host=settings.question_host,
            port=settings.question_port,
            tls=tls_of(settings.tls),
        )
    except (TokenFileError, TlsFileError) as error:
        raise SystemExit(str(error)) from None
    except OSError as error:
        raise SystemExit(
            f"cannot answer questions on {settings.question_host}:{settings.question_port} "
            f"({error.strerror or error}): set GANGLINE_QUESTION_PORT to a free port"
        ) from None


if __name__ == "__main__":
    main()
