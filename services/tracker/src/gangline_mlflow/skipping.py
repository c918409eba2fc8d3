"""Skips and counts a record that MLflow's server cannot take.

Errors of database, bus and machine are no reason to skip: they end the process.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from gangline_bus.poison import POISONED, trace_of
from gangline_bus.ports import Record
from gangline_mlflow.database import may_be_of_an_event

log = structlog.get_logger(__name__)


@contextmanager
def skipping(record: Record) -> Iterator[None]:
    """Skip and count the record if what is within raises."""
    try:
        yield
    except Exception as error:
        if not may_be_of_an_event(error):
            raise
        where = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
        log.critical("poison record skipped", **where, trace=trace_of(error))
        POISONED.add(1, {"service": "mlflow", "topic": record.topic})
