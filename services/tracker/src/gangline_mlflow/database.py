"""Transactions of MLflow's database, SQLite or PostgreSQL, and what its errors mean."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import sqlalchemy as sa
import structlog
from sqlalchemy.exc import (
    DataError,
    DBAPIError,
    IntegrityError,
    InterfaceError,
    OperationalError,
    SQLAlchemyError,
    StatementError,
)

from gangline_bus.ports import BusError

log = structlog.get_logger(__name__)

_AWAY_S = 300.0
"""The process ends when the database is away for longer; its supervisor starts another one."""
_RETRY_S = 1.0


class DatabaseAway(Exception):
    """The database does not answer, or cannot write now."""


@contextmanager
def transaction(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A connection whose changes are committed at the end. Raises DatabaseAway."""
    try:
        with engine.begin() as connection:
            yield connection
    except (OperationalError, InterfaceError) as error:
        raise DatabaseAway(str(error.orig)) from error


def patiently(write: Callable[[], None]) -> None:
    """Call `write`; while the database is away, again. Raises DatabaseAway after 5 minutes."""
    deadline = time.monotonic() + _AWAY_S
    while True:
        try:
            return write()
        except DatabaseAway as error:
            if time.monotonic() > deadline:
                raise
            log.warning("the database does not answer", error=str(error))
            time.sleep(_RETRY_S)


def may_be_of_an_event(error: Exception) -> bool:
    """Whether an event may have raised it: not the database, the bus or the machine."""
    if isinstance(error, SQLAlchemyError):
        of_value = isinstance(error, StatementError) and not isinstance(error, DBAPIError)
        return of_value or isinstance(error, DataError | IntegrityError)
    return not isinstance(error, DatabaseAway | BusError | OSError | MemoryError)
