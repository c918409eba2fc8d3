"""Runs of jobs in MLflow's own tables, and how far the logs behind them are read.

Rows are written directly, since MLflow would choose the id of a run itself. A batch and its
positions are one transaction, so a process that was killed loses nothing and counts nothing twice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from gangline_bus.ports import TopicPartition
from gangline_mlflow.database import transaction
from gangline_mlflow.job_changes import Changes, EndedAttempt, NewRun
from gangline_mlflow.job_usage import Usage
from gangline_mlflow.trial_points import KnownTrial
from gangline_schemas.mlflow_workspace import (
    ATTEMPT_TAG,
    FAMILY_CHARS,
    JOB_TAG,
    TRIAL_METRICS_TAG,
    family_of,
    mlflow_run_id,
)

_CHUNK = 500
_NAME_CHARS, _SOURCE_CHARS = 250, 500
_PARAM_CHARS, _TAG_CHARS = 6000, 8000
_NOT_ALLOWED = re.compile(r"[^\w\-. :/]")
"""In names of parameters; \\w as MLflow has it."""
_CREATE = (
    """
    CREATE TABLE IF NOT EXISTS gangline_job_positions (
      topic VARCHAR(255) NOT NULL, topic_partition INTEGER NOT NULL, next_offset BIGINT NOT NULL,
      PRIMARY KEY (topic, topic_partition))
    """,
    """
    CREATE TABLE IF NOT EXISTS gangline_job_usage (
      job_id VARCHAR(63) PRIMARY KEY, usage VARCHAR(8000) NOT NULL)
    """,
    """
    CREATE TABLE IF NOT EXISTS gangline_node_gpus (
      node_id VARCHAR(63) PRIMARY KEY, models VARCHAR(8000) NOT NULL)
    """,
)
_SET_POSITION = """
INSERT INTO gangline_job_positions (topic, topic_partition, next_offset)
VALUES (:topic, :place, :next)
ON CONFLICT (topic, topic_partition) DO UPDATE SET next_offset = excluded.next_offset
"""
_SET_USAGE = """
INSERT INTO gangline_job_usage (job_id, usage) VALUES (:job, :usage)
ON CONFLICT (job_id) DO UPDATE SET usage = excluded.usage
"""
_SET_GPUS = """
INSERT INTO gangline_node_gpus (node_id, models) VALUES (:node, :models)
ON CONFLICT (node_id) DO UPDATE SET models = excluded.models
"""
_ADD_RUN = """
INSERT INTO runs (
  run_uuid, name, source_type, source_name, entry_point_name, user_id, status, start_time,
  source_version, lifecycle_stage, artifact_uri, experiment_id)
VALUES (
  :run, :name, 'JOB', :source, '', :user, 'SCHEDULED', :start, '', 'active', :artifacts,
  :experiment)
ON CONFLICT (run_uuid) DO NOTHING
"""
_ADD_PARAM = """
INSERT INTO params (key, value, run_uuid) VALUES (:key, :value, :run)
ON CONFLICT (key, run_uuid) DO NOTHING
"""
_SET_TAG = """
INSERT INTO tags (key, value, run_uuid) VALUES (:key, :value, :run)
ON CONFLICT (key, run_uuid) DO UPDATE SET value = excluded.value
"""
_SET_STATUS = "UPDATE runs SET status = :status, end_time = :end WHERE run_uuid = :run"
_OWN_RUNS = f"""
SELECT runs.run_uuid, value, workspace FROM runs JOIN experiments USING (experiment_id)
JOIN tags ON tags.run_uuid = runs.run_uuid AND tags.key = '{JOB_TAG}'
"""  # noqa: S608
_TRIALS = f"""
SELECT runs.run_uuid, j.value, a.value, m.value FROM tags m
JOIN runs ON runs.run_uuid = m.run_uuid AND runs.status IN ('SCHEDULED', 'RUNNING')
JOIN tags j ON j.run_uuid = m.run_uuid AND j.key = '{JOB_TAG}'
JOIN tags a ON a.run_uuid = m.run_uuid AND a.key = '{ATTEMPT_TAG}'
WHERE m.key = '{TRIAL_METRICS_TAG}'
"""  # noqa: S608
_END_CHILDREN = """
UPDATE runs SET status = :status, end_time = :end
WHERE run_uuid >= :first AND run_uuid <= :last AND run_uuid <> :run AND status = 'RUNNING'
  AND EXISTS (SELECT 1 FROM tags WHERE tags.run_uuid = runs.run_uuid
    AND tags.key = :key AND tags.value = :attempt)
"""


@dataclass(frozen=True, slots=True)
class Experiment:
    """Where a run belongs."""

    experiment_id: int
    artifacts: str


class JobTable:
    """Those tables of an MLflow database: SQLite or PostgreSQL. Each method raises DatabaseAway."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        with engine.begin() as connection:
            for statement in _CREATE:
                connection.execute(sa.text(statement))

    def positions(self) -> dict[TopicPartition, int]:
        """The next offset of each partition that is not in the tables yet."""
        rows = self._rows("SELECT topic, topic_partition, next_offset FROM gangline_job_positions")
        return {TopicPartition(topic, int(place)): int(offset) for topic, place, offset in rows}

    def gpu_models(self) -> dict[str, str]:
        """The GPU models of each node."""
        return dict(self._rows("SELECT node_id, models FROM gangline_node_gpus"))

    def trials(self) -> list[KnownTrial]:
        """The trials whose jobs have not ended."""
        found = self._rows(_TRIALS)
        return [
            KnownTrial(job, frozenset(json.loads(metrics)), int(attempt))
            for run, job, attempt, metrics in found
            if mlflow_run_id(job) == run
        ]

    def usage(self, job_ids: Iterable[str]) -> dict[str, Usage]:
        """The usage of these jobs so far."""
        found = self._by_id("SELECT job_id, usage FROM gangline_job_usage", "job_id", job_ids)
        return {job_id: Usage.model_validate_json(text) for job_id, text in found}

    def known(self, job_ids: Iterable[str]) -> set[str]:
        """Those jobs that have a run."""
        by_run = {mlflow_run_id(job_id): job_id for job_id in job_ids}
        found = self._by_id("SELECT run_uuid FROM runs", "run_uuid", by_run)
        return {by_run[run] for (run,) in found}

    def workspaces(self, job_ids: Iterable[str]) -> dict[str, str]:
        """The workspaces of the runs of these jobs."""
        by_run = {mlflow_run_id(job_id): job_id for job_id in job_ids}
        select = "SELECT run_uuid, workspace FROM runs JOIN experiments USING (experiment_id)"
        return {by_run[run]: name for run, name in self._by_id(select, "run_uuid", by_run)}

    def own_runs(self, run_ids: Iterable[str]) -> list[tuple[str, str, str]]:
        """(run, job, workspace) of those runs that are the own runs of jobs."""
        found = self._by_id(_OWN_RUNS, "runs.run_uuid", run_ids)
        return [(run, job, name) for run, job, name in found if mlflow_run_id(job) == run]

    def add(self, new: Mapping[str, tuple[NewRun, Experiment]]) -> None:
        """Make runs that do not exist, by job."""
        if not new:
            return
        runs, params = [], []
        for job_id, (run, experiment) in new.items():
            run_id = mlflow_run_id(job_id)
            runs.append(_run_row(job_id, run, experiment))
            params += [{"run": run_id, **param} for param in _params(run.params)]
        with transaction(self._engine) as connection:
            _execute(connection, _ADD_RUN, runs)
            _execute(connection, _ADD_PARAM, params)

    def write(
        self,
        changes: Changes,
        usage: Mapping[str, Usage],
        gpu_models: Mapping[str, str],
        positions: Mapping[TopicPartition, int],
    ) -> None:
        """Write states and tags of runs that exist, usage, and the positions behind them."""
        known = self.known(changes)
        statuses, tags, ended = [], [], []
        for job_id, change in changes.items():
            if job_id not in known:
                continue
            run = mlflow_run_id(job_id)
            if change.status is not None:
                status, end_ms = change.status
                statuses.append({"run": run, "status": status, "end": end_ms})
            for key, value in change.tags.items():
                tags.append({"run": run, "key": key, "value": _text(value, _TAG_CHARS)})
            ended += [_ended_row(job_id, attempt) for attempt in change.ended]
        used = [{"job": job, "usage": now.model_dump_json()} for job, now in usage.items()]
        models = [{"node": node, "models": text} for node, text in gpu_models.items()]
        places = [
            {"topic": place.topic, "place": place.partition, "next": offset}
            for place, offset in sorted(positions.items())
        ]
        with transaction(self._engine) as connection:
            for statement, rows in (
                (_SET_STATUS, statuses), (_SET_TAG, tags), (_END_CHILDREN, ended),
                (_SET_USAGE, used), (_SET_GPUS, models), (_SET_POSITION, places),
            ):  # fmt: skip
                _execute(connection, statement, rows)

    def _rows(self, statement: str) -> list[Any]:
        with transaction(self._engine) as connection:
            return list(connection.execute(sa.text(statement)).all())

    def _by_id(self, select: str, column: str, ids: Iterable[str]) -> list[Any]:
        statement = sa.text(f"{select} WHERE {column} IN :ids")
        statement = statement.bindparams(sa.bindparam("ids", expanding=True))
        wanted, found = sorted(ids), []
        with transaction(self._engine) as connection:
            for start in range(0, len(wanted), _CHUNK):
                part = {"ids": wanted[start : start + _CHUNK]}
                found += connection.execute(statement, part).all()
        return found


def _execute(connection: sa.Connection, statement: str, rows: list[dict[str, Any]]) -> None:
    if rows:
        connection.execute(sa.text(statement), rows)


def _run_row(job_id: str, run: NewRun, experiment: Experiment) -> dict[str, Any]:
    run_id = mlflow_run_id(job_id)
    return {
        "run": run_id,
        "name": job_id,
        "source": _text(run.source, _SOURCE_CHARS),
        "user": _text(run.user, _NAME_CHARS),
        "start": run.submitted_ms,
        "artifacts": f"{experiment.artifacts}/{run_id}/artifacts",
        "experiment": experiment.experiment_id,
    }


def _params(params: Mapping[str, str]) -> list[dict[str, str]]:
    """As MLflow allows them: names without odd characters, values that are not too long."""
    found: dict[str, str] = {}
    for name, value in params.items():
        key = _NOT_ALLOWED.sub("_", name)[:_NAME_CHARS].strip("/. ") or "_"
        found.setdefault(key, _text(value, _PARAM_CHARS))
    return [{"key": key, "value": value} for key, value in found.items()]


def _ended_row(job_id: str, ended: EndedAttempt) -> dict[str, Any]:
    family = family_of(job_id)
    rest = 32 - FAMILY_CHARS
    return {
        "run": mlflow_run_id(job_id),
        "first": family + "0" * rest,
        "last": family + "f" * rest,
        "status": ended.status,
        "end": ended.at_ms,
        "key": ATTEMPT_TAG,
        "attempt": str(ended.attempt),
    }


def _text(value: str, most: int) -> str:
    return value.replace("\0", "")[:most]
