"""Objectives of trials that programs log to MLflow reach gangline.trials."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import sqlalchemy as sa

from gangline_bus.codec import receive
from gangline_bus.memory import Broker
from gangline_bus.topics import TopicNames
from gangline_mlflow.artifacts import Artifacts
from gangline_mlflow.history import Histories
from gangline_mlflow.latest import LatestTable
from gangline_mlflow.parts import Parts
from gangline_mlflow.points import Points
from gangline_mlflow.trial_points import KnownTrial, TrialPoints
from gangline_schemas.catalog import Topic
from gangline_schemas.events.metrics import MetricLogged
from gangline_schemas.events.scheduling import GangAllocated, JobQueued, JobStateChanged
from gangline_schemas.events.trials import TrialLogged, TrialLogsEnded
from gangline_schemas.job import JobSpec, JobState
from gangline_schemas.mlflow_workspace import family_of, mlflow_run_id
from gangline_schemas.trial_rate import POINTS_BURST
from support.builders.agent_core import allocation

JOB = "sweep-t7"
TRIAL = {"study_id": "sweep", "number": 7, "metrics": ["eval_loss", "p99"]}
SPEC = JobSpec.model_validate(
    {"name": JOB, "team": "nlp", "run": "true", "resources": {"gpus": 1}, "trial": TRIAL}
)
AT = datetime(2026, 11, 26, tzinfo=UTC)
CHILD = f"{family_of(JOB)}{'0' * 16}"


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def logged(step: int, run_id: str = CHILD, **values: float | None) -> MetricLogged:
    count = len(values)
    return MetricLogged(
        run_id=run_id, team="nlp", name=tuple(values), step=(step,) * count,
        time_ms=(0,) * count, value=tuple(values.values()),
    )  # fmt: skip


def begun(clock: Clock | None = None) -> TrialPoints:
    """A trial in its second attempt."""
    trials = TrialPoints(clock or Clock())
    trials.follow(JobQueued(job_id=JOB, spec=SPEC, user="ada", submitted_at=AT))
    for attempt in (1, 2):
        trials.follow(gang(attempt))
    return trials


def test_a_point_of_any_run_of_the_job_is_the_trial_s() -> None:
    found = begun().reported(logged(900, eval_loss=0.5, other=1.0, p99=None))
    assert found == TrialLogged(
        job_id=JOB, attempt=2, step=900, values={"eval_loss": 0.5, "p99": None}
    )
    assert begun().reported(logged(900, mlflow_run_id(JOB), eval_loss=0.5)) is not None


def test_other_runs_other_metrics_and_odd_values() -> None:
    trials = begun()
    assert trials.reported(logged(1, "0" * 32, eval_loss=0.5)) is None
    assert trials.reported(logged(1, other=0.5)) is None
    assert trials.reported(logged(-1, eval_loss=0.5)) is None
    infinite = trials.reported(logged(1, eval_loss=1.7e308))
    assert infinite is not None
    assert infinite.values == {"eval_loss": None}


ENDED = JobStateChanged(job_id=JOB, attempt=2, previous=JobState.RUNNING, state=JobState.SUCCEEDED)
END = TrialLogsEnded(job_id=JOB)


def gang(attempt: int) -> GangAllocated:
    return allocation(attempt, job_id=JOB).model_copy(update={"spec": SPEC})


def at(step: int, attempt: int) -> TrialLogged:
    return TrialLogged(job_id=JOB, attempt=attempt, step=step, values={"eval_loss": 0.5})


def test_what_comes_before_its_gang_is_known_waits_for_it() -> None:
    trials = TrialPoints()
    assert trials.follow(JobQueued(job_id=JOB, spec=SPEC, user="ada", submitted_at=AT)) == []
    for step in (1, 2):
        assert trials.reported(logged(step, eval_loss=0.5)) is None
    assert trials.follow(gang(1)) == [at(2, 1)]
    assert trials.follow(gang(1)) == []


def test_after_its_end_nothing_is_reported() -> None:
    ended = begun()
    assert ended.follow(ENDED) == [END]
    assert ended.reported(logged(1, eval_loss=0.5)) is None


def test_the_last_of_too_many_comes_at_the_end() -> None:
    trials = begun()
    for step in range(int(POINTS_BURST) + 50):
        trials.reported(logged(step, eval_loss=0.5))
    assert trials.follow(ENDED) == [at(int(POINTS_BURST) + 49, 2), END]


def test_a_next_attempt_does_not_have_points_of_the_one_before() -> None:
    trials = begun()
    for step in range(int(POINTS_BURST) + 50):
        trials.reported(logged(step, eval_loss=0.5))
    assert trials.follow(gang(3)) == []


def test_an_objective_of_each_step_is_thinned() -> None:
    clock = Clock()
    trials = begun(clock)
    many = [trials.reported(logged(step, eval_loss=0.5)) for step in range(int(POINTS_BURST) + 50)]
    assert sum(each is not None for each in many) == POINTS_BURST
    clock.now_s += 3
    later = [trials.reported(logged(step, eval_loss=0.5)) for step in range(1000, 1010)]
    assert sum(each is not None for each in later) == 3


def test_a_new_process_knows_the_trials_that_run() -> None:
    trials = TrialPoints()
    trials.load([KnownTrial(JOB, frozenset({"eval_loss"}), 3)])
    found = trials.reported(logged(1, eval_loss=0.5))
    assert found is not None
    assert found.attempt == 3


def test_the_answer_waits_for_both_records(tmp_path: Path) -> None:
    names, broker = TopicNames(""), Broker()
    bus = broker.connect("mlflow")
    bus.create_topics(names.settings())
    parts = Parts(bus, names, cast("Histories", None), cast("Artifacts", None), lambda: None)
    table = LatestTable(sa.create_engine(f"sqlite:///{tmp_path}/db"))
    points = Points(parts, table, begun())
    points.send(logged(5, eval_loss=0.25)).result(5)
    reader = bus.reader("test")
    reader.assign(dict.fromkeys(names.places(bus, Topic.TRIALS), 0))
    [record] = reader.poll(10, 1.0)
    assert receive(record).envelope.data == TrialLogged(
        job_id=JOB, attempt=2, step=5, values={"eval_loss": 0.25}
    )
    points.publish([END], 5)
    [record] = reader.poll(10, 1.0)
    assert receive(record).envelope.data == END
