"""Fetches the image of a job while it waits for GPUs that are reserved for it here.

`gpus.reserved` names the nodes; others still stop and save there, so the image is often here when
the gang starts. It is not held: if the budget is used up, it may be deleted before.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from queue import SimpleQueue
from typing import Protocol

import structlog

from gangline_schemas.base import Event
from gangline_schemas.events.scheduling import GangAllocated, GpusReserved, JobQueued
from gangline_storage.errors import StoreError
from gangline_worker.agent.decide.keys import GangKey

from .problems import ImageProblem

log = structlog.get_logger(__name__)

READS = (JobQueued, GpusReserved)
_JOBS = 10_000
"""So many waiting jobs with images are known, the newest ones."""
_NO_ATTEMPT = 0


class Images(Protocol):
    """`GangImages`, as far as this needs them."""

    def get(self, key: GangKey, team: str, wanted: str) -> object:
        """Fetch and hold."""

    def release(self, key: GangKey) -> None:
        """Hold no longer."""


class Prefetch:
    """One image at a time, in a thread of its own. `note` is called by one thread."""

    def __init__(self, node_id: str, images: Images) -> None:
        self._node_id = node_id
        self._images = images
        self._waiting: OrderedDict[str, tuple[str, str]] = OrderedDict()
        self._reserved: dict[str, tuple[str, str]] = {}
        self._wanted: SimpleQueue[str | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="prefetch", daemon=True)

    def start(self) -> None:
        """Begin to fetch."""
        self._thread.start()

    def stop(self) -> None:
        """Fetch no more; does not wait for the end of a download."""
        self._reserved.clear()
        self._wanted.put(None)

    def note(self, event: Event) -> None:
        """An event of the scheduler's log."""
        if isinstance(event, JobQueued) and event.spec.image is not None:
            self._waiting[event.job_id] = (event.spec.team, event.spec.image)
            if len(self._waiting) > _JOBS:
                self._waiting.popitem(last=False)
        elif isinstance(event, GangAllocated):
            self._waiting.pop(event.job_id, None)
            self._reserved.pop(event.job_id, None)
        elif isinstance(event, GpusReserved):
            here = any(node.node_id == self._node_id for node in event.nodes)
            found = self._waiting.pop(event.job_id, None) if here else None
            if found is not None:
                self._reserved[event.job_id] = found
                self._wanted.put(event.job_id)

    def _run(self) -> None:
        while (job_id := self._wanted.get()) is not None:
            found = self._reserved.pop(job_id, None)
            if found is None:
                continue  # the gang has started, or nothing more is fetched
            team, image = found
            key = GangKey(job_id, _NO_ATTEMPT)
            try:
                self._images.get(key, team, image)
            except (ImageProblem, StoreError, OSError) as error:  # the gang will say why
                log.info("image.not_prefetched", job=job_id, reason=str(error))
            else:
                log.info("image.prefetched", job=job_id, image=image)
                self._images.release(key)
