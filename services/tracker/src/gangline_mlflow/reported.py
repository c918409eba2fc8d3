"""Metrics that jobs report by `report()`, as metrics of the jobs' MLflow runs.

Their histories are read from the table `steps` (`history.py`). Their newest values come from
gangline.progress, and are written to `latest_metrics` every few seconds: so MLflow's pages know
which curves a run has, and searches find it. A value that is written twice changes nothing. Its
step is the run's, which may be later than the step at which a job reported it last.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence

import structlog

from gangline_bus.codec import UndecodableError, receive
from gangline_bus.ports import Record
from gangline_mlflow.database import DatabaseAway, patiently
from gangline_mlflow.history import JobOfRun, Unreadable
from gangline_mlflow.job_table import JobTable
from gangline_mlflow.latest import Latest, LatestTable, keep_newer
from gangline_mlflow.parts import Parts
from gangline_mlflow.patience import bounds
from gangline_mlflow.skipping import skipping
from gangline_schemas.catalog import Topic
from gangline_schemas.events.progress import RunProgress
from gangline_schemas.mlflow_workspace import mlflow_run_id, team_of

log = structlog.get_logger(__name__)

_RECORDS = 2_000
_POLL_S = 1.0
_WRITE_EVERY_S = 5.0
"""A run's progress comes once a second; each write costs a row for each of its metrics."""
_JOBS = 1_000
"""More jobs than that are written at once."""
_NAME_CHARS = 250
"""The longest key of MLflow's table."""


class ReportedMetrics:
    """Follows the newest values of all jobs' metrics. Call `start` once."""

    def __init__(self, parts: Parts, latest: LatestTable, jobs: JobTable) -> None:
        self._bus, self._names, self._beat = parts.bus, parts.names, parts.beat
        self._reader = parts.bus.reader("reported")
        self._table, self._jobs = latest, jobs
        self._latest: dict[tuple[str, str], Latest] = {}  # by team and job

    def start(self) -> None:
        """Continue where the database stands. Raises BusDenied."""
        starts, ends = bounds(self._bus, self._names, Topic.PROGRESS, self._beat)
        known = self._jobs.positions()
        self._reader.assign(
            {place: min(max(known.get(place, 0), starts[place]), ends[place]) for place in ends}
        )
        threading.Thread(target=self._follow, name="reported", daemon=True).start()

    def jobs_of(self, run_ids: Iterable[str]) -> dict[str, JobOfRun]:
        """The jobs whose own runs these are; other runs are left out. Raises Unreadable."""
        try:
            found = self._jobs.own_runs(run_ids)
        except DatabaseAway as error:
            raise Unreadable("the database does not answer") from error
        return {run_id: JobOfRun(job, team_of(workspace)) for run_id, job, workspace in found}

    def _follow(self) -> None:
        written = time.monotonic()
        while True:  # an exception ends the process
            self._take(self._reader.poll(_RECORDS, _POLL_S))
            now = time.monotonic()
            if self._latest and (now - written >= _WRITE_EVERY_S or len(self._latest) > _JOBS):
                patiently(self.flush)  # nothing is read from the bus meanwhile
                written = time.monotonic()

    def _take(self, records: Sequence[Record]) -> None:
        for record in records:
            try:
                event = receive(record).envelope.data
            except UndecodableError as error:
                log.warning("record skipped", offset=record.offset, error=error.reason)
                continue
            if isinstance(event, RunProgress):
                with skipping(record):
                    self._fold(event)

    def _fold(self, event: RunProgress) -> None:
        run_id = mlflow_run_id(event.run_id)
        kept = self._latest.setdefault((event.team, event.run_id), {})
        for name, value in event.metrics.items():
            if len(name) <= _NAME_CHARS:
                keep_newer(kept, (run_id, name), (event.step, event.time_ms, value, False))

    def flush(self) -> None:
        """Write what was read. Raises DatabaseAway; then the values are kept for the next time."""
        found = self._jobs.workspaces({job_id for _, job_id in self._latest})
        teams = {job_id: team_of(workspace) for job_id, workspace in found.items()}
        merged: Latest = {}
        for (team, job_id), kept in self._latest.items():
            if teams.get(job_id) == team:  # a program may report as a job of another team
                merged.update(kept)
        self._table.write(merged, {})
        self._jobs.write({}, {}, {}, self._reader.positions())
        self._latest = {}
