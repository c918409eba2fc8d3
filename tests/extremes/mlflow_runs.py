"""MLflow's follower of jobs, with MLflow's tables on SQLite in memory."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from itertools import count
from types import SimpleNamespace
from typing import cast

import sqlalchemy as sa
from mlflow.store.tracking.dbmodels.models import Base

from gangline_bus.codec import Received, encode
from gangline_bus.memory import Broker
from gangline_bus.ports import Record, TopicPartition
from gangline_bus.topics import TopicNames
from gangline_mlflow.artifacts import Artifacts
from gangline_mlflow.history import Histories
from gangline_mlflow.job_changes import Changes, NewRun
from gangline_mlflow.job_runs import JobRuns
from gangline_mlflow.job_table import Experiment
from gangline_mlflow.latest import LatestTable
from gangline_mlflow.parts import Parts
from gangline_mlflow.points import Points
from gangline_mlflow.trial_points import TrialPoints
from gangline_schemas.catalog import Topic
from gangline_schemas.gpu_prices import GpuPrices
from gangline_schemas.mlflow_workspace import workspace_of

from .readers import bounded

_FOLLOWED = {Topic.SCHEDULING.value, Topic.FAULTS.value}
_EARLIER = NewRun("red", "red/default", "ada", 0, "true", {})
_OURS = Experiment(1, "gangline-artifacts:/1")
_TABLES = ("experiments", "runs", "params", "tags", "latest_metrics")
_offsets = count()


class _Followed(JobRuns):
    """All runs are of one experiment, and each job of an event has a run."""

    def _experiment(self, run: NewRun) -> Experiment:
        workspace_of(run.team)
        return _OURS

    def _make(self, changes: Changes) -> None:
        super()._make(changes)
        self.table.add(dict.fromkeys(changes, (_EARLIER, _OURS)))


@cache
def _runs() -> JobRuns:
    engine = sa.create_engine("sqlite://", poolclass=sa.StaticPool)
    Base.metadata.create_all(engine, [Base.metadata.tables[name] for name in _TABLES])
    with engine.begin() as connection:
        connection.execute(
            sa.text(
                "INSERT INTO experiments (experiment_id, name, workspace, lifecycle_stage)"
                " VALUES (1, 'red/default', 'red', 'active')"
            )
        )
    names, bus = TopicNames(""), Broker().connect("mlflow")
    bus.create_topics(names.settings())
    nothing = (cast("Histories", None), cast("Artifacts", None), lambda: None)
    parts = Parts(bus, names, *nothing, GpuPrices.of({"h100": 2.5, "cpu": 0.1}))
    trials = TrialPoints()
    points = Points(parts, LatestTable(engine), trials)
    return _Followed(parts, SimpleNamespace(engine=engine), points, trials)


def check_mlflow(said: Iterable[Received]) -> None:
    """Runs of jobs change as events say; no event would be skipped as poison."""
    records: list[Record] = []
    for received in said:
        if received.topic in _FOLLOWED:
            sent = encode(received.envelope, topic=received.topic)
            at = (received.topic, 0, next(_offsets))
            records.append(Record(*at, sent.key, sent.value, sent.headers, 0))
    after = {TopicPartition(one.topic, 0): one.offset + 1 for one in records}
    try:
        with bounded():
            _runs().apply(records, after)
    except Exception:
        _runs.cache_clear()  # the next event meets a sound one
        raise
