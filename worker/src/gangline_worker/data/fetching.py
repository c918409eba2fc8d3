"""Pieces of objects that are fetched side by side before they are needed."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection
from concurrent.futures import Future

from gangline_storage import ObjectStore

FETCHES = 16
"""At most so many at a time: with blocks of 1 MiB and 50 ms of latency 320 MB/s."""


class Fetching:
    """Blocks on their way from a store. Used by one thread; others wait for the store.

    Nothing is on its way in a forked child, such as a loader's worker: it has not these threads.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._begun: dict[int, Future[bytes]] = {}
        self._pid = os.getpid()

    @property
    def _coming(self) -> dict[int, Future[bytes]]:
        if self._pid != os.getpid():
            self._pid, self._begun = os.getpid(), {}
        return self._begun

    def __contains__(self, block: int) -> bool:
        return block in self._coming

    @property
    def is_full(self) -> bool:
        """Whether no further fetch may begin."""
        return len(self._coming) >= FETCHES

    def keep(self, blocks: Collection[int]) -> None:
        """Forget all others, which will not be taken."""
        self._begun = {block: found for block, found in self._coming.items() if block in blocks}

    def begin(self, block: int, name: str, start: int, length: int) -> None:
        """Fetch a piece of an object in a thread that no exit of the process waits for."""
        future: Future[bytes] = Future()
        self._coming[block] = future

        def fetch() -> None:
            try:
                future.set_result(self._store.get_range(name, start, length))
            except BaseException as error:  # noqa: BLE001 - raised again where it is taken
                future.set_exception(error)

        threading.Thread(target=fetch, daemon=True, name="data-fetch").start()

    def take(self, block: int) -> bytes | None:
        """Return the bytes of a block, waited for; None if it was not begun. Raises StoreError."""
        future = self._coming.pop(block, None)
        return None if future is None else future.result()
