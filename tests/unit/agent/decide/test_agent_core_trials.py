"""How an agent passes on the evaluation points of a trial."""

from __future__ import annotations

import pytest

from gangline_schemas.events.workers import TrialReported
from gangline_schemas.job import TrialRef
from gangline_schemas.rank_protocol import TrialPoint
from gangline_schemas.trial_rate import POINTS_BURST
from gangline_worker.agent.decide.inputs import RankExited, RankMessage
from gangline_worker.agent.decide.keys import RankKey
from support.builders.agent_core import Node, published

TRIAL = TrialRef(study_id="sweep", number=7, metrics=("eval_loss",))


@pytest.fixture
def node() -> Node:
    return Node()


def point(rank: RankKey, step: int, **values: float | None) -> RankMessage:
    return RankMessage(rank, TrialPoint(step=step, values=values or {"eval_loss": 0.5}))


def steps(found: list[TrialReported]) -> list[int]:
    return [each.step for each in found]


def test_a_point_has_the_metrics_that_decide(node: Node) -> None:
    first, _ = node.running(trial=TRIAL)
    said = node.do(point(first, 900, eval_loss=None, other=1.0), point(first, 901, other=1.0))
    assert published(said, TrialReported) == [
        TrialReported(job_id="job", attempt=1, step=900, values={"eval_loss": None})
    ]


def test_points_of_another_rank_and_of_a_job_that_is_no_trial_are_nothing(node: Node) -> None:
    _, second = node.running(trial=TRIAL)
    assert node.do(point(second, 900)) == []
    other = Node()
    first, _ = other.running()
    assert other.do(point(first, 900)) == []


def test_an_objective_of_each_step_is_thinned_and_its_last_point_is_not_lost(node: Node) -> None:
    first, _ = node.running(trial=TRIAL)
    many = int(POINTS_BURST) + 50
    found = published(node.do(*(point(first, step) for step in range(many))), TrialReported)
    assert steps(found) == list(range(int(POINTS_BURST)))
    node.time_s += 2
    assert steps(published(node.do(point(first, many)), TrialReported)) == [many]
    node.do(point(first, many + 1), point(first, many + 2))
    ended = published(node.do(RankExited(first, code=0)), TrialReported)
    assert steps(ended) == [many + 2]
