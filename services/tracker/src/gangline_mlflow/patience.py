"""Asks the bus, and waits while it is away or slow: that is no reason to end the server."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import structlog

from gangline_bus.ports import Bus, BusDenied, BusError, TopicPartition
from gangline_bus.topics import TopicNames
from gangline_schemas.catalog import Topic

log = structlog.get_logger(__name__)

_RETRY_S = 1.0
ResultT = TypeVar("ResultT")
Offsets = dict[TopicPartition, int]


def answered(ask: Callable[[], ResultT], beat: Callable[[], None]) -> ResultT:
    """The answer of the bus; asks again while there is none. Raises BusDenied.

    `beat` is called before each try.
    """
    while True:
        beat()
        try:
            return ask()
        except BusDenied:
            raise
        except (BusError, TimeoutError) as error:
            log.warning("MLflow's server waits for the bus", error=str(error)[:300])
            time.sleep(_RETRY_S)


def bounds(
    bus: Bus, names: TopicNames, topic: Topic, beat: Callable[[], None]
) -> tuple[Offsets, Offsets]:
    """The first offset and the end of each partition of a topic. Raises BusDenied."""

    def ask() -> tuple[Offsets, Offsets]:
        places = names.places(bus, topic)
        return bus.start_offsets(places), bus.end_offsets(places)

    return answered(ask, beat)
