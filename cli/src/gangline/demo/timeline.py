"""The events of the demo, read from the gateway's event stream."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from gangline.errors import CliError
from gangline.sdk import Gangline
from gangline_schemas.api.logs import BusEvent

_TOPICS = ("quota", "scheduling", "faults", "checkpoints", "workers", "steps")


class Timeline:
    """All events since `start`, in the order in which they came; grows in the background."""

    def __init__(self, client: Gangline) -> None:
        self._client = client
        self._events: list[BusEvent] = []
        self._grown = threading.Condition()
        self._failure: CliError | None = None
        self._closed = False

    def start(self) -> None:
        """Follow the topics in a daemon thread, which ends with the process."""
        threading.Thread(target=self._follow, name="timeline", daemon=True).start()

    def close(self) -> None:
        """Nothing more is expected: the connection may go."""
        self._closed = True

    def of(self, event_type: str, job_id: str) -> list[BusEvent]:
        """The events of a type about a job so far."""
        with self._grown:
            return [e for e in self._events if e.type == event_type and _about(e) == job_id]

    def wait_for(
        self, event_type: str, job_id: str, wanted: Callable[[BusEvent], bool], timeout_s: float
    ) -> BusEvent:
        """The first such event. Raises CliError when it does not come in time."""
        deadline = time.monotonic() + timeout_s
        with self._grown:
            while True:
                if self._failure is not None:
                    raise self._failure
                for event in self._events:
                    if event.type == event_type and _about(event) == job_id and wanted(event):
                        return event
                if not self._grown.wait(deadline - time.monotonic()):
                    raise CliError(f"no {event_type} of {job_id} within {timeout_s:.0f} s")

    def _follow(self) -> None:
        try:
            for event in self._client.events(_TOPICS, follow=True):
                with self._grown:
                    self._events.append(event)
                    self._grown.notify_all()
        except (CliError, RuntimeError) as error:
            if self._closed:
                return
            with self._grown:
                self._failure = CliError(f"the event stream ended: {error}")
                self._grown.notify_all()


def _about(event: BusEvent) -> object:
    return event.data.get("job_id") or event.data.get("run_id")
