"""Losses that are not finite, and that leap up: what is counted, what is reported, what raises."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gangline_schemas.events.heartbeats import Trouble, TroubleKind
from gangline_schemas.failure_policy import OnNan, OnSpike, TrainingPolicy
from gangline_schemas.rank_protocol import FromRank, Report, Troubled
from gangline_worker.agent_line import Reporter
from gangline_worker.loss_watch import FiniteWatch, NotFiniteError, Spike, SpikeWatch
from support.fakes.agent_end import AgentEnd

NAN = math.nan
CALM = [2.0 + 0.01 * (step * 7 % 5 - 2) for step in range(16)]  # median 2, MAD 0.01
POLICY = OnSpike(window=16, deviations=10, steps=3)


def told(losses: list[float], policy: OnSpike = POLICY) -> list[Spike]:
    watch = SpikeWatch(policy)
    return [spike for step, loss in enumerate(losses, 1) if (spike := watch.saw(step, loss))]


def test_so_many_steps_in_a_row_are_borne_and_one_more_is_not() -> None:
    watch = FiniteWatch(skip=2)
    assert watch.saw(1, finite=False)
    assert not watch.saw(2, finite=False)
    with pytest.raises(
        NotFiniteError, match=r"3 steps in a row, the last 3; .*skip is 2"
    ) as raised:
        watch.saw(3, finite=False)
    assert list(raised.value.steps) == [1, 2, 3]
    with pytest.raises(NotFiniteError, match=r"not finite in step 7; .*skip is 0") as raised:
        FiniteWatch(skip=0).saw(7, finite=False)
    assert list(raised.value.steps) == [7]


def test_a_finite_step_in_between_begins_the_count_anew() -> None:
    watch = FiniteWatch(skip=2)
    for step in range(1, 30, 3):
        assert watch.saw(step, finite=False)
        watch.saw(step + 1, finite=False)
        watch.saw(step + 2, finite=True)
        assert watch.in_a_row == 0


def test_a_step_that_is_told_of_twice_counts_once() -> None:
    watch = FiniteWatch(skip=1)
    watch.saw(5, finite=False)
    watch.saw(5, finite=False)
    watch.saw(5, finite=True)  # its loss was finite, its gradient was not
    assert watch.in_a_row == 1


def test_a_spike_is_told_once_it_lasts() -> None:
    (spike,) = told([*CALM, 5.0, 6.0, 7.0, 8.0])
    assert (spike.first, spike.last, spike.loss, spike.usual) == (17, 19, 7.0, 2.0)
    assert spike.limit == pytest.approx(2.1)
    assert spike.describe() == (
        "the loss was above 2.1 from step 17 to 19, where it is 7; the median of the 16 before is 2"
    )


@pytest.mark.parametrize(
    "losses",
    [
        [*CALM, 9.0, 9.0, 2.0, 9.0, 9.0, 2.0],  # never three in a row
        [*CALM, 2.05, 2.08, 2.09, 2.099],  # within ten deviations
        [*CALM[:15], 9.0, 9.0, 9.0],  # the window is not full
        [*CALM, NAN, NAN, NAN, NAN],  # another watch's business
        [10.0 / step for step in range(1, 60)],  # it falls
    ],
    ids=["short", "small", "early", "nan", "falls"],
)
def test_what_is_no_spike(losses: list[float]) -> None:
    assert told(losses) == []


def test_a_new_level_is_told_once() -> None:
    higher = [loss + 3 for loss in CALM]
    assert len(told([*CALM, *higher, *higher])) == 1


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentEnd]:
    end = AgentEnd(tmp_path)
    yield end
    end.hang_up()


def troubles(said: list[FromRank]) -> list[Trouble]:
    return [message.trouble for message in said if isinstance(message, Troubled)]


def test_a_reported_spike_is_told_to_the_agent(agent: AgentEnd) -> None:
    reporter = Reporter(agent.path, policy=TrainingPolicy(on_spike=POLICY))
    for step, loss in enumerate([*CALM, 5.0, 5.0, 5.0, 5.0], 1):
        reporter.report({"loss": loss}, step)
    (trouble,) = troubles(agent.wait_for(lambda said: bool(troubles(said))))
    assert (trouble.kind, trouble.step) == (TroubleKind.LOSS_SPIKE, 19)


def test_a_script_whose_loss_stays_nan_is_ended_and_its_agent_told(agent: AgentEnd) -> None:
    reporter = Reporter(agent.path, policy=TrainingPolicy(on_nan=OnNan(skip=2)))
    for step in range(1, 9):  # a rank that has no loss, as in a pipeline
        reporter.report({"loss": NAN}, step)
    assert not reporter.not_finite
    reporter.report({"loss": 2.0}, 10)
    reporter.report({"loss": NAN}, 11)
    assert reporter.not_finite
    reporter.report({"loss": NAN}, 12)
    with pytest.raises(NotFiniteError):
        reporter.report({"loss": math.inf}, 13)
    (trouble,) = troubles(agent.wait_for(lambda said: bool(troubles(said))))
    assert (trouble.kind, trouble.step) == (TroubleKind.NOT_FINITE, 11)


@pytest.mark.parametrize("kind", [np.float32, np.array, torch.tensor])
def test_a_loss_of_numpy_or_a_tensor_is_watched_as_a_float_is(
    agent: AgentEnd, kind: Callable[[float], Any]
) -> None:
    reporter = Reporter(agent.path, policy=TrainingPolicy(on_nan=OnNan(skip=1)))
    reporter.report({"loss": kind(2.0)}, np.int64(1))  # type: ignore[arg-type]
    reporter.report({"loss": kind(NAN)}, torch.tensor(2))  # type: ignore[arg-type]
    with pytest.raises(NotFiniteError, match="the last 3"):
        reporter.report({"loss": kind(NAN)}, 3)
    (trouble,) = troubles(agent.wait_for(lambda said: bool(troubles(said))))
    assert (trouble.kind, trouble.step) == (TroubleKind.NOT_FINITE, 2)


def test_a_step_that_is_none_is_named_once_and_breaks_nothing(agent: AgentEnd) -> None:
    reporter = Reporter(agent.path, policy=TrainingPolicy(on_nan=OnNan(skip=0)))
    reporter.report({"loss": 2.0}, 1)
    with pytest.warns(UserWarning, match=r"not reported: step 1\.5 is no integer"):
        reporter.report({"loss": NAN}, 1.5)  # type: ignore[arg-type]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        reporter.report({"loss": NAN}, -1)
    with pytest.raises(TypeError, match=r"step: 1\.5 is no integer"):
        reporter.should_skip(1.5, 0.5)  # type: ignore[arg-type]


def test_a_step_that_is_counted_in_one_tensor_is_taken_as_it_is_now(agent: AgentEnd) -> None:
    reporter, step = Reporter(agent.path, flush_period_s=3600), torch.zeros((), dtype=torch.int64)
    for _ in range(3):
        step += 1
        reporter.report({"lr": 0.5}, step)  # type: ignore[arg-type]
    assert reporter.flush()
    said = agent.wait_for(lambda said: any(isinstance(one, Report) for one in said))
    assert [at for one in said if isinstance(one, Report) for at in one.step] == [1, 2, 3]


def test_an_update_is_skipped_for_what_is_not_finite_also_without_an_agent() -> None:
    reporter = Reporter(None, policy=TrainingPolicy(on_nan=OnNan(skip=1)))
    assert not reporter.should_skip(1, 0.5, 3)
    assert reporter.should_skip(2, 0.5, math.inf)
    assert reporter.not_finite
    assert not reporter.should_skip(3, 0.5)
    assert not reporter.not_finite
    assert reporter.should_skip(4, NAN)
    with pytest.raises(NotFiniteError):
        reporter.should_skip(5, NAN)
