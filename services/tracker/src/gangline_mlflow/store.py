"""MLflow's own SQL store, in which only the methods of metrics are replaced.

Histories go to Kafka and ClickHouse; `latest_metrics` stays in SQL, so MLflow's searches and orders
by metrics work unchanged. Private methods of MLflow that are used here are named in ADR 32.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from mlflow.entities import Metric
from mlflow.entities.entity_type import EntityAssociationType
from mlflow.entities.metric import MetricWithRunId
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import TEMPORARILY_UNAVAILABLE
from mlflow.store.entities.paged_list import PagedList
from mlflow.store.tracking.sqlalchemy_workspace_store import WorkspaceAwareSqlAlchemyStore
from mlflow.utils.search_utils import SearchUtils
from mlflow.utils.validation import _validate_metric
from mlflow.utils.workspace_context import get_request_workspace
from pydantic import ValidationError

from gangline_bus.ports import BusError
from gangline_mlflow.history import MOST_POINTS, Histories, Row, Unreadable
from gangline_mlflow.job_runs import JobRuns
from gangline_mlflow.latest import LatestTable
from gangline_mlflow.parts import Parts
from gangline_mlflow.plain import RunsQuery
from gangline_mlflow.points import NotSettledError, Points
from gangline_mlflow.reported import ReportedMetrics
from gangline_mlflow.run_ids import ids_of_job, ids_of_run
from gangline_mlflow.run_list import found
from gangline_mlflow.run_tags import tag_events
from gangline_mlflow.search import found_runs
from gangline_mlflow.trial_points import TrialPoints
from gangline_schemas.run_search import FoundRun, RunSearch

ACCEPT_S = 30.0


@contextmanager
def _refusals() -> Iterator[None]:
    """Answer 503 while bus or ClickHouse are away: MLflow's client then tries again."""
    try:
        yield
    except (BusError, NotSettledError, Unreadable, TimeoutError) as error:
        raise MlflowException(
            f"metrics cannot be stored or read now: {error}", error_code=TEMPORARILY_UNAVAILABLE
        ) from error
    except ValidationError as error:  # MLflow lets a name end with a line break
        raise MlflowException.invalid_parameter_value(
            f"Invalid metric: {error.errors()[0]['msg']}"
        ) from None


class GanglineStore(WorkspaceAwareSqlAlchemyStore):  # type: ignore[misc]  # MLflow has no types
    """The store of a server with workspaces."""

    points: Points
    jobs: JobRuns
    histories: Histories

    # Writing

    def _log_metrics(self, run_id: str, metrics: Sequence[Metric]) -> None:
        for index, metric in enumerate(metrics):
            path = "" if len(metrics) == 1 else f"metrics[{index}]"
            _validate_metric(metric.key, metric.value, metric.timestamp, metric.step, path=path)
        self.assert_active(run_id)
        if not metrics:
            return
        points = [(m.key, int(m.step), int(m.timestamp), float(m.value)) for m in metrics]
        with _refusals():
            self.points.accept(get_request_workspace(), run_id, points).result(ACCEPT_S)

    def assert_active(self, run_id: str) -> None:
        """Raise MlflowException unless points of this run may be logged."""
        with self.ManagedSessionMaker() as session:
            self._check_run_is_active(self._get_run(run_uuid=run_id, session=session))

    def create_run(
        self, experiment_id: str, user_id: str, start_time: int, tags: Any, run_name: str
    ) -> Any:
        """MLflow's; the id of a run that a job makes shows the job."""
        with ids_of_job(tags):
            return super().create_run(experiment_id, user_id, start_time, tags, run_name)

    # Tags of jobs' own runs: the gateway's filters find these too

    def set_tag(self, run_id: str, tag: Any) -> None:
        """MLflow's."""
        super().set_tag(run_id, tag)
        self._tagged(run_id, {tag.key: tag.value})

    def _set_tags(self, run_id: str, tags: Any) -> None:
        super()._set_tags(run_id, tags)
        self._tagged(run_id, {tag.key: tag.value for tag in tags})

    def delete_tag(self, run_id: str, key: str) -> None:
        """MLflow's."""
        super().delete_tag(run_id, key)
        self._tagged(run_id, {key: None})

    def _tagged(self, run_id: str, tags: dict[str, str | None]) -> None:
        with _refusals():
            self.points.publish([*tag_events(self.jobs.table, run_id, tags)], ACCEPT_S)

    def create_logged_model(
        self,
        experiment_id: str,
        name: str | None = None,
        source_run_id: str | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """MLflow's; the id of a run's model begins as the run's."""
        with ids_of_run(source_run_id):
            return super().create_logged_model(experiment_id, name, source_run_id, *args, **kwargs)

    def _hard_delete_run(self, run_id: str) -> None:
        """MLflow's, for its `gc`. Points go first: after a kill, the next `gc` finds the run."""
        with _refusals():
            self.points.remove(get_request_workspace(), run_id).result(ACCEPT_S)
        super()._hard_delete_run(run_id)

    # The newest values, in SQL

    def get_run(self, run_id: str) -> Any:
        """MLflow's, after what was accepted before."""
        self._settle()
        return super().get_run(run_id)

    def _search_runs(self, *args: Any, **kwargs: Any) -> Any:
        self._settle()
        return super()._search_runs(*args, **kwargs)

    def search_json(self, asked: RunsQuery) -> bytes:
        """The answer to runs/search, after what was accepted before. Raises Odd."""
        self._settle()
        with self.ManagedSessionMaker() as session:
            mine = self._filter_experiment_ids(session, asked.experiments)
            return found_runs(session, asked, mine)

    def list_runs(self, asked: RunSearch) -> list[FoundRun]:
        """Runs of several teams or all, after what was accepted before."""
        self._settle()
        with self.ManagedSessionMaker() as session:
            return found(session, asked)

    def _settle(self) -> None:
        with _refusals():
            self.points.settle_latest()

    # Histories, in ClickHouse

    def readable(self, run_ids: Iterable[str]) -> Histories:
        """The histories, after what was accepted before.

        Raises MlflowException when a run is of another workspace.
        """
        run_ids = list(run_ids)
        with self.ManagedSessionMaker() as session:
            for run_id in run_ids:
                self._validate_run_accessible(session, run_id)
        with _refusals():
            self.points.settle_history(run_ids)
        return self.histories

    @_refusals()
    def get_metric_history(
        self,
        run_id: str,
        metric_key: str,
        max_results: int | None = None,
        page_token: str | None = None,
    ) -> PagedList:
        """A page of the points of a metric: `MOST_POINTS` at most, also if none are named."""
        histories = self.readable([run_id])
        offset = SearchUtils.parse_start_offset_from_page_token(page_token)
        size = MOST_POINTS if max_results is None else min(max_results, MOST_POINTS)
        rows = histories.of_run(run_id, metric_key, offset, size + 1)
        following = None
        if len(rows) > size:
            rows = rows[:size]
            following = SearchUtils.create_page_token(offset + size)
        return PagedList([_metric(metric_key, row) for row in rows], following)

    @_refusals()
    def get_metric_history_bulk(
        self, run_ids: Sequence[str], metric_key: str, max_results: int
    ) -> list[MetricWithRunId]:
        """Points of the runs that are of this workspace."""
        with self.ManagedSessionMaker() as session:
            mine = self._filter_entity_ids(session, EntityAssociationType.RUN, list(run_ids))
        self.points.settle_history(mine)
        return _with_runs(metric_key, self.histories.of_runs(mine, metric_key, max_results))

    @_refusals()
    def get_max_step_for_metric(self, run_id: str, metric_key: str) -> int:
        """The largest step of a metric; 0 without points."""
        return self.readable([run_id]).last_step(run_id, metric_key)

    @_refusals()
    def get_metric_history_bulk_interval_from_steps(
        self, run_id: str, metric_key: str, steps: Sequence[int], max_results: int
    ) -> list[MetricWithRunId]:
        """Points at these steps."""
        rows = self.readable([run_id]).at_steps(run_id, metric_key, list(steps), max_results)
        return _with_runs(metric_key, rows)

    @_refusals()
    def get_metric_history_bulk_interval(
        self,
        run_ids: Sequence[str],
        metric_key: str,
        max_results: int,
        start_step: int | None,
        end_step: int | None,
    ) -> list[MetricWithRunId]:
        """A sample of each run's points."""
        if (start_step is None) != (end_step is None):
            raise MlflowException.invalid_parameter_value(
                "Both start_step and end_step must be specified together, "
                "or neither may be specified."
            )
        steps = None if start_step is None or end_step is None else (start_step, end_step)
        histories = self.readable(run_ids)
        order = list(dict.fromkeys(run_ids))
        rows = histories.sample(order, metric_key, max(1, max_results), steps)
        if len(order) == len(run_ids):
            return _with_runs(metric_key, rows)
        return [
            point
            for run_id in run_ids  # a run that is named twice is shown twice
            for point in _with_runs(metric_key, [row for row in rows if row[0] == run_id])
        ]


def open_store(database: str, artifact_root: str | None, parts: Parts) -> GanglineStore:
    """The store, its schema up to date, and all that earlier processes left is in SQL.

    Raises what MLflow raises when the database is away or of a later version.
    """
    if database.startswith("sqlite"):
        engine = GanglineStore._get_or_create_engine(database)  # noqa: SLF001 - see ADR 32
        sa.event.listen(engine, "connect", _prompt_commits)
        engine.dispose()
    store = GanglineStore(database, artifact_root)
    store.histories = parts.histories
    latest = LatestTable(store.engine)
    trials = TrialPoints()
    store.points = Points(parts, latest, trials)
    store.jobs = JobRuns(parts, store, store.points, trials)
    store.jobs.start()  # first: points of a run that is not there are left out
    store.points.start()
    reported = ReportedMetrics(parts, latest, store.jobs.table)
    parts.histories.jobs_of = reported.jobs_of
    reported.start()
    return store


def _prompt_commits(connection: Any, _record: object) -> None:
    """Commits that survive this process, as those of ClickHouse and the broker's do.

    Writers wait for each other as long as MLflow's own do.
    """
    connection.execute("PRAGMA busy_timeout = 20000")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")


def _metric(name: str, row: Row) -> Metric:
    _, step, time_ms, value, is_nan = row
    return Metric(name, math.nan if is_nan else value, time_ms, step)


def _with_runs(name: str, rows: Iterable[Row]) -> list[MetricWithRunId]:
    return [MetricWithRunId(run_id=row[0], metric=_metric(name, row)) for row in rows]
