"""Writes the states of jobs into their TrainingJob objects.

A round reads the active jobs of the gateway once, and single jobs that are no longer among them.
It patches only what differs. The status of an object whose job has ended is never changed again. A
job that the gateway does not know for `LOST_S` is forgotten there: its object ends too.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase

import structlog

from gangline_kube.core.resource import TRAINING_JOBS, Object
from gangline_kube.core.training_job import (
    difference,
    ended,
    job_id_of_object,
    lost_status,
    status_of,
)
from gangline_kube.service.api import Cluster, Conflict, KubeError, NotFound, Unavailable
from gangline_kube.service.gateway import Gateway, GatewayError

log = structlog.get_logger(__name__)
SINGLE = 200
"""So many jobs are read one by one in a round; the others come in the next ones."""
LOST_S = 600.0
"""A gateway that reads its logs again, or a second one, may know a job so much later."""
_PATCHES_AT_ONCE = 8


class Mirror:
    """Mirrors jobs into the objects that `objects` gives; `namespaces`: of these alone, if any."""

    def __init__(
        self,
        api: Cluster,
        gateway: Gateway,
        objects: Callable[[], list[Object]],
        namespaces: tuple[str, ...] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api, self._gateway, self._objects = api, gateway, objects
        self._namespaces, self._clock = namespaces, clock
        self._unknown: dict[str, float] = {}
        self._user = ""
        self._last = ""
        self._pool = ThreadPoolExecutor(_PATCHES_AT_ONCE, thread_name_prefix="mirror")

    def run(self, stopping: threading.Event, every_s: float, beat: Callable[[bool], None]) -> None:
        """Mirror until `stopping` is set; `beat` gets whether the round went through."""
        while not stopping.wait(every_s):
            try:
                self.round()
                beat(True)
            except (GatewayError, KubeError) as error:
                log.warning("kube.mirror_failed", error=str(error))
                beat(False)

    def round(self) -> int:
        """Compare once; how many objects were changed. Raises GatewayError and KubeError.

        An object of which a change is refused, as by a webhook or a newer definition, holds up no
        other: the error is raised after them. Once the server is away, no further ones are tried.
        """
        open_ = {}
        for item in self._objects():
            status = item.get("status") or {}
            if status.get("jobId") and not ended(status) and self._counts(item):
                open_[job_id_of_object(item)] = item
        if not open_:
            return 0
        found = self._statuses(open_)
        shown = list(
            self._pool.map(lambda each: self._show(open_[each[0]], each[1]), found.items())
        )
        for refusal in shown:
            if isinstance(refusal, KubeError):
                raise refusal
        return sum(each is True for each in shown)

    def _counts(self, item: Object) -> bool:
        own = item["metadata"]["namespace"]
        return not self._namespaces or any(fnmatchcase(own, each) for each in self._namespaces)

    def _statuses(self, open_: dict[str, Object]) -> dict[str, Object]:
        """The status of each job of these that is known now, or that is lost."""
        found: dict[str, Object] = {}
        if self._user:
            active = self._gateway.active_jobs(self._user)
            found = {job.job_id: status_of(job) for job in active if job.job_id in open_}
        rest = sorted(open_.keys() - found.keys())
        after = bisect_right(rest, self._last)
        single = (rest[after:] + rest[:after])[:SINGLE]
        self._last = single[-1] if single else ""
        now, unknown = self._clock(), dict[str, float]()
        for job_id, job in zip(single, self._pool.map(self._gateway.job, single), strict=True):
            if job is not None:
                found[job_id] = status_of(job)
                self._user = job.user
                continue
            unknown[job_id] = self._unknown.get(job_id, now)
            if now - unknown[job_id] >= LOST_S:
                found[job_id] = lost_status()
        for job_id in set(rest) - set(single):
            if job_id in self._unknown:
                unknown[job_id] = self._unknown[job_id]
        self._unknown = unknown
        return found

    def _show(self, item: Object, status: Object) -> bool | KubeError:
        """Whether it was changed, or why that was refused. Raises Unavailable."""
        change = difference(item.get("status") or {}, status)
        if not change:
            return False
        metadata = item["metadata"]
        # The object may be gone, and another one of its name there; a status is not guarded by uid.
        body = {"metadata": {"resourceVersion": metadata["resourceVersion"]}, "status": change}
        try:
            self._api.patch(
                TRAINING_JOBS, metadata["name"], body, metadata["namespace"], part="status"
            )
        except (Conflict, NotFound):
            return False
        except Unavailable:
            raise
        except KubeError as refusal:
            return refusal
        return True
