"""Follows the logs of scheduler and fault manager, and keeps the MLflow run of each job.

A batch:
1. read the new records of both logs. The fault manager's follow from the scheduler's, so these are
   read up to their end after those;
2. make experiments and runs that are new: if they exist, nothing happens;
3. send points of metrics. When a batch comes again, they are the same and count once;
4. write states, tags and the positions of both logs in one transaction.

So the cost grows with what happens, and not with jobs that have ended.

If a batch raises, its records are applied one by one. One that raises alone is poison: it is
skipped and counted. Errors of database and bus end the process instead.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import structlog
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import RESOURCE_ALREADY_EXISTS, TEMPORARILY_UNAVAILABLE, ErrorCode
from mlflow.utils.workspace_context import ServerWorkspaceContext

from gangline_bus.codec import UndecodableError, event_type, receive
from gangline_bus.poison import trace_of
from gangline_bus.ports import Reader, Record, TopicPartition
from gangline_mlflow.database import DatabaseAway, may_be_of_an_event, patiently
from gangline_mlflow.job_changes import TAKEN, Change, Changes, NewRun, take
from gangline_mlflow.job_table import Experiment, JobTable
from gangline_mlflow.job_usage import Usage, charge
from gangline_mlflow.parts import Parts
from gangline_mlflow.patience import answered, bounds
from gangline_mlflow.plain import Point
from gangline_mlflow.points import Points
from gangline_mlflow.skipping import skipping
from gangline_mlflow.trial_points import TrialPoints
from gangline_mlflow.workspaces import make_workspace
from gangline_schemas.catalog import Topic
from gangline_schemas.events.trials import TrialLogged, TrialLogsEnded
from gangline_schemas.mlflow_workspace import mlflow_run_id, workspace_of

log = structlog.get_logger(__name__)

WAIT_S = 15.0
_ACCEPT_S = 30.0
_POLL_S = 0.2
_RECORDS = 2_000
_JOBS_KEPT = 10_000
_TYPES = frozenset(event.type for event in TAKEN)


class JobRuns:
    """The runs of all jobs. Call `start` first; then any thread may ask."""

    def __init__(
        self, parts: Parts, store: Any, points: Points, trials: TrialPoints | None = None
    ) -> None:
        self._bus, self._names, self._beat = parts.bus, parts.names, parts.beat
        self._store, self._points, self._prices = store, points, parts.prices
        self.table = JobTable(store.engine)
        self._trials = trials or TrialPoints()
        self._trials.load(self.table.trials())
        self._unsent: list[TrialLogged | TrialLogsEnded] = []
        self._gpu_models = self.table.gpu_models()
        self._experiments: dict[tuple[str, str], Experiment] = {}
        self._changed = threading.Condition()
        self._known: set[str] = set()
        self._scheduling = parts.bus.reader("job-runs")
        self._faults = parts.bus.reader("job-incidents")

    def start(self) -> None:
        """Read what happened up to now, then follow. Raises BusDenied, RuntimeError.

        While the bus does not answer, this waits: requests wait with it.
        """
        positions = self.table.positions()
        ends = self._assign(self._scheduling, Topic.SCHEDULING, positions)
        ends |= self._assign(self._faults, Topic.FAULTS, positions)
        while self._is_behind(ends):
            self._beat()
            self._turn(_POLL_S)
        threading.Thread(target=self._follow, name="job-runs", daemon=True).start()

    async def has(self, job_id: str) -> bool:
        """Whether a job has its run; waits for it up to `WAIT_S`. Raises DatabaseAway."""
        return job_id in self._known or await asyncio.to_thread(self._wait, job_id)

    def _wait(self, job_id: str) -> bool:
        if self.table.known([job_id]):
            self._remember([job_id])
            return True
        with self._changed:
            return self._changed.wait_for(lambda: job_id in self._known, WAIT_S)

    def _assign(
        self, reader: Reader, topic: Topic, known: dict[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Read on where the tables stand; the ends of the log now."""
        starts, ends = bounds(self._bus, self._names, topic, self._beat)
        for place in ends:
            if known.get(place, 0) > ends[place]:
                raise RuntimeError(
                    f"the database has read {place.topic}[{place.partition}] up to "
                    f"{known[place]}, but it ends at {ends[place]}: the database belongs to "
                    "another bus"
                )
        reader.assign({place: max(known.get(place, 0), starts[place]) for place in ends})
        return ends

    def _is_behind(self, ends: dict[TopicPartition, int]) -> bool:
        at = {**self._scheduling.positions(), **self._faults.positions()}
        return any(at[place] < end for place, end in ends.items())

    def _follow(self) -> None:
        while True:  # an exception ends the process
            self._turn(_POLL_S)

    def _turn(self, wait_s: float) -> None:
        faults = self._faults.poll(_RECORDS, 0.0)
        records = self._scheduling.poll(_RECORDS, 0.0 if faults else wait_s)
        if faults:
            ends = answered(lambda: self._bus.end_offsets(self._scheduling.positions()), self._beat)
            while any(self._scheduling.positions()[place] < end for place, end in ends.items()):
                self._beat()
                records += self._scheduling.poll(_RECORDS, _POLL_S)
        if records or faults:
            positions = {**self._scheduling.positions(), **self._faults.positions()}
            self._take([*records, *faults], positions)

    def _take(self, records: Sequence[Record], positions: dict[TopicPartition, int]) -> None:
        try:
            patiently(lambda: self.apply(records, positions))
        except Exception as error:
            if not may_be_of_an_event(error):
                raise
            log.warning("records are applied one by one", trace=trace_of(error))
            for record in records:
                self._take_alone(record)
            patiently(lambda: self.table.write({}, {}, {}, positions))

    def _take_alone(self, record: Record) -> None:
        after = {TopicPartition(record.topic, record.partition): record.offset + 1}
        with skipping(record):
            patiently(lambda: self.apply([record], after))
        patiently(lambda: self.table.write({}, {}, {}, after))  # those of a skipped one, too

    def apply(self, records: Sequence[Record], positions: dict[TopicPartition, int]) -> None:
        """Bring the changes of records, and the positions after them, into the tables.

        Applying the same records again is safe. Raises DatabaseAway; anything else for poison.
        """
        self._beat()
        changes: Changes = {}
        models: dict[str, str] = dict(self._gpu_models)
        for record in records:
            if event_type(record.headers) in _TYPES:
                try:
                    envelope = receive(record).envelope
                except UndecodableError as error:
                    log.warning("record skipped", offset=record.offset, error=error.reason)
                    continue
                take(changes, models, envelope.data, envelope.time)
                self._unsent += self._trials.follow(envelope.data)
        unsent, self._unsent = self._unsent, []  # whatever it raises, later records do not
        answered(lambda: self._points.publish(unsent, _ACCEPT_S), self._beat)
        self._make(changes)
        if not self._is_written(positions):
            usage = self._charge(changes)
            self._publish(changes)
            known = self._gpu_models
            new = {node: text for node, text in models.items() if known.get(node) != text}
            self.table.write(changes, usage, new, positions)
        self._gpu_models = models
        self._remember([job_id for job_id, change in changes.items() if change.new is not None])

    def _is_written(self, positions: dict[TopicPartition, int]) -> bool:
        """Whether a write whose answer was lost is in the tables: sums must not grow twice."""
        known = self.table.positions()
        return all(known.get(place, 0) >= offset for place, offset in positions.items())

    def _make(self, changes: Changes) -> None:
        made: dict[str, tuple[NewRun, Experiment]] = {}
        for job_id, change in list(changes.items()):
            if change.new is None:
                continue
            try:
                made[job_id] = (change.new, self._experiment(change.new))
            except ValueError as error:  # no workspace can have the team's name
                log.warning("job without a run", job=job_id, reason=str(error))
                del changes[job_id]
            except MlflowException as error:
                if error.error_code != ErrorCode.Name(TEMPORARILY_UNAVAILABLE):
                    raise
                raise DatabaseAway(str(error.message)) from error
        self.table.add(made)

    def _experiment(self, run: NewRun) -> Experiment:
        name = run.experiment
        key = (run.team, name)
        if key not in self._experiments:
            workspace = workspace_of(run.team)
            make_workspace(workspace)
            with ServerWorkspaceContext(workspace):
                try:
                    self._store.create_experiment(name)
                except MlflowException as error:
                    if error.error_code != ErrorCode.Name(RESOURCE_ALREADY_EXISTS):
                        raise
                found = self._store.get_experiment_by_name(name)
            self._experiments[key] = Experiment(
                int(found.experiment_id), found.artifact_location.rstrip("/")
            )
        return self._experiments[key]

    def _charge(self, changes: Changes) -> dict[str, Usage]:
        """The new usage of jobs; their changes get the points of it."""
        using = [job for job, change in changes.items() if change.usage]
        known = self.table.usage(using)
        found = {}
        for job_id in using:
            change = changes[job_id]
            usage = known.get(job_id, Usage())
            found[job_id], points = charge(usage, change.usage, self._prices)
            change.points += points
        return found

    def _publish(self, changes: Changes) -> None:
        teams = self.table.workspaces(job for job, change in changes.items() if change.points)
        items = [(teams[job], job, changes[job]) for job in sorted(teams)]
        answered(lambda: self._send(items), self._beat)

    def _send(self, items: list[tuple[str, str, Change]]) -> None:
        futures = []
        for workspace, job_id, change in items:
            points: list[Point] = [
                (point.name, point.step, point.time_ms, point.value) for point in change.points
            ]
            futures.append(self._points.accept(workspace, mlflow_run_id(job_id), points))
        for future in futures:
            future.result(_ACCEPT_S)

    def _remember(self, job_ids: list[str]) -> None:
        with self._changed:
            if len(self._known) > _JOBS_KEPT:
                self._known = set()
            self._known.update(job_ids)
            self._changed.notify_all()
