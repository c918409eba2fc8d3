"""All objects of a kind, kept current in this process by a list and then by watches.

1. List. 2. Watch from the list's resource version on. 3. A watch that ended is opened again where
it ended; if that version is too old by then, or the server was away for long, list again.
4. Watches that end at once, again and again, are opened ever more rarely.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog

from gangline_kube.core.resource import Object, Resource
from gangline_kube.service.api import Cluster, Denied, Gone, KubeError, Unavailable

log = structlog.get_logger(__name__)
LONGEST_PAUSE_S = 30.0
LEAST_WATCH_S = 1.0
"""A watch that ended earlier has followed nothing."""


class Followed(threading.Thread):
    """Objects by namespace and name; of each what `part` takes of it, with both.

    `namespace`: those of it alone; "": all.
    """

    def __init__(
        self,
        api: Cluster,
        of: Resource,
        ended: threading.Event,
        part: Callable[[Object], Object],
        namespace: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(name=f"follow-{of.plural}", daemon=True)
        self._api, self._of, self._ended, self._part = api, of, ended, part
        self._namespace, self._clock = namespace, clock
        self._lock = threading.Lock()
        self._items: dict[tuple[str, str], Object] = {}
        self._version = ""
        self.listed = threading.Event()
        """Set once all objects are known."""

    def items(self) -> list[Object]:
        """The objects as they are known now. They must not be changed."""
        with self._lock:
            return list(self._items.values())

    def run(self) -> None:
        """Follow until `ended` is set; called by `start`, in the thread."""
        pause_s, ended_at_once = 0.0, False
        while not self._ended.wait(pause_s):
            begun_s = self._clock()
            try:
                if not self._version:
                    self._list()
                    begun_s = self._clock()
                self._watch()
            except Gone:
                self._version = ""
            except KubeError as error:
                level = log.error if isinstance(error, Denied) else log.warning
                level("kube.follow_failed", kind=self._of.plural, error=str(error))
                least_s = error.retry_s if isinstance(error, Unavailable) else 1.0
                pause_s = _longer(pause_s, least_s)
                continue
            once_more, ended_at_once = ended_at_once, self._clock() - begun_s < LEAST_WATCH_S
            pause_s = _longer(pause_s, LEAST_WATCH_S) if once_more and ended_at_once else 0.0

    def _list(self) -> None:
        found = self._api.list(self._of, self._namespace, part=self._part)
        with self._lock:
            self._items = {_key(item): item for item in found.items}
        self._version = found.version
        self.listed.set()

    def _watch(self) -> None:
        for change in self._api.watch(self._of, self._version, self._namespace):
            if change.kind != "BOOKMARK":
                with self._lock:
                    if change.kind == "DELETED":
                        self._items.pop(_key(change.item), None)
                    else:
                        self._items[_key(change.item)] = self._part(change.item)
            self._version = change.version
            if self._ended.is_set():
                return


def _longer(pause_s: float, least_s: float) -> float:
    return min(LONGEST_PAUSE_S, max(least_s, 2 * pause_s))


def _key(item: Object) -> tuple[str, str]:
    metadata = item["metadata"]
    return metadata.get("namespace", ""), metadata["name"]
