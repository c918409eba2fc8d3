"""Write one record to a stream and wait until it is there."""

from __future__ import annotations

from gangline_bus.ports import Bus, BusError, BusUnavailable, OutRecord


def write_one(bus: Bus, record: OutRecord, timeout_s: float) -> None:
    """Returns when the record is safe. Raises BusError if it is not within `timeout_s` seconds."""
    lost: list[BusError] = []
    writer = bus.writer()
    writer.send(record, lambda error: lost.append(error) if error is not None else None)
    waiting = writer.flush(timeout_s)
    writer.close()
    if lost:
        raise lost[0]
    if waiting:
        raise BusUnavailable(f"{record.topic} did not take a record within {timeout_s:g} s")
