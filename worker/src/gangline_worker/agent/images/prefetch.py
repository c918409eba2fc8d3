"""Fetches the images of waiting jobs that are expected to start here.

The scheduler names the nodes: in `gpus.reserved`, where others still stop and save for a job, and
in `job.waiting` with the first estimate of its start. The image is then kept until the job starts
or ends. A gang that starts may take its place, since a waiting job must not keep a node from work.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from queue import SimpleQueue
from typing import Protocol

import structlog

from gangline_schemas.base import Event
from gangline_schemas.events.scheduling import (
    GangAllocated,
    GpusReserved,
    JobQueued,
    JobStateChanged,
    JobWaiting,
)
from gangline_schemas.job import JobSpec
from gangline_storage.errors import StoreError
from gangline_worker.agent.decide.keys import GangKey

from .problems import ImageProblem

log = structlog.get_logger(__name__)

READS = (JobQueued, JobWaiting, GpusReserved, JobStateChanged)
_JOBS = 10_000
"""So many jobs with images are known, the newest ones."""
_HERE = 16
"""Images of so many waiting jobs are fetched and kept, those that were named last."""
_NO_ATTEMPT = 0


class Images(Protocol):
    """`GangImages`, as far as this needs them."""

    def get_early(self, key: GangKey, team: str, wanted: str, stopping: threading.Event) -> object:
        """Fetch and keep until `release`; once `stopping` is set, wait for no registry."""

    def release(self, key: GangKey) -> None:
        """Keep no longer."""


class Prefetch:
    """One image at a time, in a thread of its own. `note` is called by one thread."""

    def __init__(self, node_id: str, images: Images) -> None:
        self._node_id = node_id
        self._images = images
        self._known: OrderedDict[str, tuple[str, str]] = OrderedDict()
        self._here: OrderedDict[str, tuple[str, str]] = OrderedDict()
        self._fetching: str | None = None
        self._stopping = threading.Event()
        self._wanted: SimpleQueue[str | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="prefetch", daemon=True)

    def start(self) -> None:
        """Begin to fetch."""
        self._thread.start()

    def stop(self) -> None:
        """Fetch no more; does not wait for the end of a download."""
        with self._lock:
            self._here.clear()
            self._stopping.set()
        self._wanted.put(None)

    def note(self, event: Event) -> None:
        """An event of the scheduler's log."""
        match event:
            case JobQueued():
                self._know(event.job_id, event.spec)
            case GangAllocated():
                self._know(event.job_id, event.spec)  # it may wait again
                self._forget(event.job_id)
            case JobStateChanged() if event.state.terminal:
                self._known.pop(event.job_id, None)
                self._forget(event.job_id)
            case JobWaiting():
                self._want(event.job_id, event.likely_nodes or ())
            case GpusReserved():
                self._want(event.job_id, (node.node_id for node in event.nodes))

    def _know(self, job_id: str, spec: JobSpec) -> None:
        if spec.image is not None:
            self._known[job_id] = (spec.team, spec.image)
            if len(self._known) > _JOBS:
                self._known.popitem(last=False)

    def _want(self, job_id: str, nodes: Iterable[str]) -> None:
        found = self._known.get(job_id)
        if found is None or self._node_id not in nodes:
            return
        with self._lock:
            if job_id in self._here:
                return
            self._here[job_id] = found
            oldest = next(iter(self._here)) if len(self._here) > _HERE else None
        if oldest is not None:
            self._forget(oldest)
        self._wanted.put(job_id)

    def _forget(self, job_id: str) -> None:
        with self._lock:
            found = self._here.pop(job_id, None)
            if job_id == self._fetching:
                self._stopping.set()
            elif found is not None:
                self._images.release(GangKey(job_id, _NO_ATTEMPT))

    def _run(self) -> None:
        while (job_id := self._wanted.get()) is not None:
            with self._lock:
                found = self._here.get(job_id)
                if found is None:
                    continue  # the gang has started, or nothing more is fetched
                self._fetching = job_id
                self._stopping = stopping = threading.Event()
            team, image = found
            key = GangKey(job_id, _NO_ATTEMPT)
            try:
                self._images.get_early(key, team, image, stopping)
            except (ImageProblem, StoreError, OSError) as error:  # the gang will say why
                log.info("image.not_prefetched", job=job_id, reason=str(error))
                failed = True
            else:
                log.info("image.prefetched", job=job_id, image=image)
                failed = False
            with self._lock:
                self._fetching = None
                if failed:
                    self._here.pop(job_id, None)  # tried again where it is named again
                elif job_id not in self._here:
                    self._images.release(key)
