"""From a spool to the bus, in order, until each record is safe there.

1. Take records from the spool and send them; 2. release what was delivered, in order;
3. after a failure wait, go back to the first record that is not safe, and send from there again.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from gangline_bus.ports import BusError, BusUnavailable, Writer

from .spool import Position, Spool

log = structlog.get_logger(__name__)

_BATCH = 500
_IN_FLIGHT = 5_000
_BACKOFF_S = (0.1, 0.2, 0.5, 1.0, 2.0)
_REFUSALS = 3


@dataclass(slots=True)
class _Sent:
    end: Position
    done: threading.Event = field(default_factory=threading.Event)
    error: BusError | None = None


class Sender:
    """A thread that empties one spool. `droppable`: a record that the bus refuses is given up."""

    def __init__(
        self, name: str, spool: Spool, writer: Callable[[], Writer], *, droppable: bool
    ) -> None:
        self._name = name
        self._spool = spool
        self._new_writer = writer
        self._droppable = droppable
        self._stopping = threading.Event()
        self._in_flight: deque[_Sent] = deque()
        self._failures = 0
        self._dropped = self._damaged = 0
        self._thread = threading.Thread(target=self._run, name=f"send-{name}", daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def drain(self, timeout_s: float) -> bool:
        """Wait until all that was appended is safe; False when it is not in time."""
        paused = threading.Event()
        for _ in range(max(1, int(timeout_s / 0.02))):
            if not self._spool.waiting:
                return True
            paused.wait(0.02)
        return not self._spool.waiting

    def stop(self) -> None:
        """Stop sending; what is left stays in the spool."""
        self._stopping.set()
        self._thread.join(1.0)

    def _run(self) -> None:
        writer = self._new_writer()
        while not self._stopping.is_set():
            room = _IN_FLIGHT - len(self._in_flight)
            taken = self._spool.take(min(_BATCH, room), 0.05 if self._in_flight else 0.2)
            error = self._send(writer, taken) or self._collect(wait=room == 0)
            if error is not None:
                self._recover(writer, error)
            self._note_drops()
        writer.flush(1.0)
        self._collect(wait=False)
        writer.close()

    def _send(self, writer: Writer, taken: list) -> BusError | None:  # type: ignore[type-arg]
        for item in taken:
            sent = _Sent(item.end)

            def delivered(error: BusError | None, sent: _Sent = sent) -> None:
                sent.error = error
                sent.done.set()

            try:
                writer.send(item.record, delivered)
            except BusError as error:
                return error
            self._in_flight.append(sent)
        return None

    def _collect(self, *, wait: bool) -> BusError | None:
        """Release what is delivered at the front; the front's error, if it failed."""
        safe: Position | None = None
        error: BusError | None = None
        if wait and self._in_flight:
            self._in_flight[0].done.wait(0.2)
        while self._in_flight and self._in_flight[0].done.is_set():
            if self._in_flight[0].error is not None:
                error = self._in_flight[0].error
                break
            safe = self._in_flight.popleft().end
        if safe is not None:
            self._failures = 0
            self._spool.release(safe)
        return error

    def _recover(self, writer: Writer, error: BusError) -> None:
        pause_s = _BACKOFF_S[min(self._failures, len(_BACKOFF_S) - 1)]
        self._failures += 1
        log.warning("spool.waits", spool=self._name, error=str(error), retry_in_s=pause_s)
        self._stopping.wait(pause_s)
        # Let the rest end first, so that nothing overtakes what is sent again.
        writer.flush(5.0)
        refused = not isinstance(error, BusUnavailable) and self._failures >= _REFUSALS
        if self._droppable and refused and self._in_flight and self._in_flight[0].done.is_set():
            self._spool.release(self._in_flight[0].end)
            log.error("spool.refused", spool=self._name, error=str(error), records=1)
            self._failures = 0
        self._in_flight.clear()
        self._spool.rewind()

    def _note_drops(self) -> None:
        dropped = self._spool.dropped
        if dropped > self._dropped:
            log.error("spool.dropped", spool=self._name, records=dropped - self._dropped)
            self._dropped = dropped
        damaged = self._spool.damaged
        if damaged > self._damaged:
            log.error("spool.damaged", spool=self._name, left_out=damaged - self._damaged)
            self._damaged = damaged
