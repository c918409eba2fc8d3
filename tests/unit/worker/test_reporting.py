"""What a rank reports, and what it receives, over a real socket."""

from __future__ import annotations

import math
import os
import resource
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import torch

from gangline_schemas.events.heartbeats import RankActivity
from gangline_schemas.events.workers import ObjectDigest, SampleRange
from gangline_schemas.rank_protocol import (
    Control,
    CopyDamaged,
    CopyReplaced,
    DataDamaged,
    Doing,
    HandlesStop,
    Hello,
    LeaveOutSamples,
    Report,
    ShardReady,
    TrialPoint,
)
from gangline_worker.agent_line import AGENT_LOST, QUEUE_VALUES, Reporter
from gangline_worker.columns import DROPPED_METRIC, Entry, to_columns, to_reports
from support.fakes.agent_end import AgentEnd
from support.waiting import until

DIGEST = ObjectDigest(key="rank-00000.bin", size_bytes=1, xxh3="0" * 32)
SHARD = ShardReady(step=3, rank=0, world_size=1, manifest=DIGEST, shard=DIGEST)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentEnd]:
    end = AgentEnd(tmp_path)
    yield end
    end.hang_up()


def reports(said: object) -> list[Report]:
    assert isinstance(said, list)
    return [message for message in said if isinstance(message, Report)]


def test_rows_become_columns_with_gaps() -> None:
    joined = to_columns([(1, 10, {"loss": 2.5}), (2, 20, {"loss": math.nan, "lr": 1})], dropped=4)
    assert joined.step == (1, 2)
    assert joined.time_ms == (10, 20)
    assert joined.metrics == {
        "loss": (2.5, None),
        "lr": (None, 1.0),
        DROPPED_METRIC: (None, 4.0),
    }


def test_a_slip_in_one_metric_costs_that_metric_alone() -> None:
    rows = [(1, 10, {"loss": 2.5, "note": "text", **{f"m{i}": 1.0 for i in range(2000)}})]
    joined = to_columns(rows, dropped=1)  # type: ignore[arg-type]
    assert joined.metrics["loss"] == (2.5,)
    assert joined.metrics["note"] == (None,)
    assert joined.metrics[DROPPED_METRIC] == (1.0,)
    assert len(joined.metrics) == 1000


def test_many_metrics_are_sent_in_lines_that_the_agent_takes(agent: AgentEnd) -> None:
    reporter = Reporter(agent.path, flush_period_s=3600)
    for step in range(300):
        reporter.report({f"layer.{i}.grad_norm": i / 7 for i in range(200)}, step)
    assert reporter.flush()
    said = reports(agent.wait_for(lambda said: sum(len(r.step) for r in reports(said)) == 300))
    assert [step for one in said for step in one.step] == list(range(300))
    assert max(len(one.encode()) for one in said) < 1024 * 1024


def test_a_metric_a_call_is_sent_in_lines_that_the_agent_takes(agent: AgentEnd) -> None:
    reporter = Reporter(agent.path, flush_period_s=3600)
    given = {(step, f"grad/{i}"): i / 7 for step in range(5) for i in range(600)}
    for (step, name), value in given.items():
        reporter.report({name: value}, step)
    assert reporter.flush()
    said = reports(agent.wait_for(lambda said: len(values_of(reports(said))) >= len(given)))
    assert values_of(said) == given
    assert max(len(one.encode()) for one in said) < 1024 * 1024


def test_names_that_differ_between_steps_are_all_sent(agent: AgentEnd) -> None:
    reporter = Reporter(agent.path, flush_period_s=3600)
    given = {(step, f"of.{step}.{i}"): 0.5 for step in range(4) for i in range(600)}
    for step in range(4):
        reporter.report({name: value for (at, name), value in given.items() if at == step}, step)
    assert reporter.flush()
    said = reports(agent.wait_for(lambda said: sum(len(r.step) for r in reports(said)) == 4))
    assert values_of(said) == given


def values_of(said: list[Report]) -> dict[tuple[int, str], float]:
    return {
        (step, name): value
        for one in said
        for name, column in one.metrics.items()
        for step, value in zip(one.step, column, strict=True)
        if value is not None
    }


def test_values_of_one_metric_and_step_stay_apart_and_steps_may_go_back() -> None:
    rows: list[Entry] = [(2, 10, {"a": 1.0}), (2, 11, {"b": 2.0}), (2, 12, {"a": 3.0})]
    [one] = to_reports([*rows, (1, 13, {"a": 4.0})], dropped=2)
    assert (one.step, one.time_ms) == ((2, 2, 1), (11, 12, 13))
    assert one.metrics["a"] == (1.0, 3.0, 4.0)
    assert one.metrics["b"] == (2.0, None, None)
    assert one.metrics[DROPPED_METRIC] == (None, None, 2.0)


@pytest.mark.parametrize("count", [999, 1000, 2500])
def test_a_report_of_more_metrics_than_a_message_takes_is_sent_whole(count: int) -> None:
    values = {f"layer/{index}": float(index) for index in range(count)}
    found = list(to_reports([(1, 10, {"a": 1.0}), (2, 20, values), (3, 30, {"a": 3.0})], dropped=2))
    assert all(len(Report.model_validate(one.model_dump()).metrics) <= 1000 for one in found)
    sent = {
        (step, name): value
        for one in found
        for name, column in one.metrics.items()
        for step, value in zip(one.step, column, strict=True)
        if value is not None
    }
    assert sent.pop((3, DROPPED_METRIC)) == 2.0
    assert sent.pop((1, "a")) == 1.0
    assert sent.pop((3, "a")) == 3.0
    assert sent == {(2, name): value for name, value in values.items()}


def test_a_value_that_is_overwritten_is_sent_as_it_was(agent: AgentEnd) -> None:
    reporter = Reporter(agent.path, flush_period_s=3600, trial_metrics=("eval",))
    running, seen = torch.zeros(()), np.zeros(())
    for step in range(3):
        running += 1
        seen += 2
        reporter.report({"loss": running, "eval": seen}, step)  # type: ignore[dict-item]
    assert reporter.flush()
    said = agent.wait_for(lambda said: len(said) == 5)
    [report] = reports(said)
    assert report.metrics == {"loss": (1.0, 2.0, 3.0), "eval": (2.0, 4.0, 6.0)}
    points = [message for message in said if isinstance(message, TrialPoint)]
    assert [point.values for point in points] == [{"eval": 2.0}, {"eval": 4.0}, {"eval": 6.0}]


def test_a_copy_on_a_gpu_is_not_waited_for_in_the_step(agent: AgentEnd) -> None:
    """The SDK logs one in place of a tensor there."""

    class Copy:
        """Its number is there once the GPU is as far."""

        def __float__(self) -> float:
            read_by.append(threading.current_thread())
            return 2.5

    read_by: list[threading.Thread] = []
    reporter = Reporter(agent.path, flush_period_s=3600)
    reporter.report({"loss": Copy()}, 3)  # type: ignore[dict-item]
    assert reporter.flush()
    [said] = reports(agent.wait_for(lambda said: len(reports(said)) == 1))
    assert said.metrics == {"loss": (2.5,)}
    assert threading.current_thread() not in read_by


def test_a_script_may_have_a_thousand_files_open(agent: AgentEnd) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    with ExitStack() as files:
        while files.enter_context(Path(os.devnull).open("rb")).fileno() < 1024:
            pass
        reporter = Reporter(agent.path, flush_period_s=3600)
        reporter.report({"loss": 1.0}, 3)
        assert reporter.flush()
        assert reporter.should_stop() is None
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_hello_comes_first_and_many_steps_share_a_message(agent: AgentEnd) -> None:
    reporter = Reporter(agent.path, token="t0k", rank=3, flush_period_s=3600)
    for step in range(100):
        reporter.report({"loss": float(step)}, step)
    assert reporter.flush()
    said = agent.wait_for(lambda said: len(reports(said)) > 0)
    assert said[0] == Hello(rank=3, token="t0k")
    [only] = reports(said)
    assert only.step == tuple(range(100))
    assert only.metrics["loss"] == tuple(float(step) for step in range(100))


def test_steps_go_out_by_themselves_and_before_their_shard(agent: AgentEnd) -> None:
    reporter = Reporter(agent.path, flush_period_s=0.01)
    reporter.report({"loss": 1.0}, 3)
    agent.wait_for(lambda said: len(reports(said)) == 1)
    reporter.report({"loss": 1.0}, 4)
    reporter.shard_ready(SHARD)
    said = agent.wait_for(lambda said: SHARD in said)
    assert [step for one in reports(said[: said.index(SHARD)]) for step in one.step] == [3, 4]


def test_rank_0_of_a_trial_passes_on_the_metrics_that_decide(agent: AgentEnd) -> None:
    reporter = Reporter(agent.path, flush_period_s=3600, trial_metrics=("eval_loss", "eval_p99"))
    reporter.report({"loss": 1.0}, 3)
    reporter.report({"loss": 1.0, "eval_loss": 0.5}, 4)
    reporter.report({"eval_loss": math.nan, "eval_p99": 7}, 5)
    assert reporter.flush()
    said = agent.wait_for(lambda said: len(said) == 4)
    assert said[2:] == [
        TrialPoint(step=4, values={"eval_loss": 0.5}),
        TrialPoint(step=5, values={"eval_loss": None, "eval_p99": 7.0}),
    ]


def test_other_ranks_of_a_trial_report_steps_alone(agent: AgentEnd) -> None:
    reporter = Reporter(agent.path, rank=1, flush_period_s=3600, trial_metrics=("eval_loss",))
    reporter.report({"eval_loss": 0.5}, 4)
    assert reporter.flush()
    said = agent.wait_for(lambda said: len(said) == 2)
    assert [type(message) for message in said] == [Hello, Report]


def test_what_a_rank_does_goes_out_at_once_and_after_its_steps(agent: AgentEnd) -> None:
    reporter = Reporter(agent.path, flush_period_s=3600)
    reporter.report({"loss": 1.0}, 3)
    reporter.do(RankActivity.EVALUATING)
    said = agent.wait_for(lambda said: len(said) == 3)
    assert [type(message) for message in said] == [Hello, Report, Doing]
    assert said[2] == Doing(activity=RankActivity.EVALUATING)


def test_a_full_queue_sheds_the_oldest_and_says_so(agent: AgentEnd) -> None:
    reporter = Reporter(agent.path, flush_period_s=3600, queue_limit=10)
    for step in range(25):
        reporter.report({"loss": 0.0}, step)
    assert reporter.dropped == 15
    assert reporter.flush()
    [only] = reports(agent.wait_for(lambda said: len(reports(said)) > 0))
    assert only.step == tuple(range(15, 25))
    assert only.metrics[DROPPED_METRIC][-1] == 15


def test_a_queue_of_many_metrics_holds_fewer_steps(agent: AgentEnd) -> None:
    reporter = Reporter(agent.path, flush_period_s=3600)
    many = {f"m{number}": 0.5 for number in range(900)}
    for step in range(1300):
        reporter.report(many, step)
    queued = 1300 - reporter.dropped
    assert 0 <= queued * len(many) - QUEUE_VALUES <= 2 * len(many)


def test_what_the_agent_asks_is_heard(agent: AgentEnd) -> None:
    reporter = Reporter(agent.path)
    agent.wait_for(lambda said: len(said) == 1)
    assert not reporter.should_checkpoint()
    assert reporter.should_stop() is None
    agent.ask(Control(checkpoint_request=1))
    until(reporter.should_checkpoint)
    assert not reporter.should_checkpoint()
    assert reporter.interval_s is None
    agent.ask(Control(stop="preempted", checkpoint_request=1, interval_s=90.0))
    until(lambda: reporter.should_stop() == "preempted")
    until(lambda: reporter.interval_s == 90.0)
    assert not reporter.should_checkpoint()


def test_a_checkpoint_is_due_by_the_jobs_interval_on_rank_0(agent: AgentEnd) -> None:
    now = [0.0]
    reporter = Reporter(agent.path, interval_s=60.0, clock=lambda: now[0])
    assert not reporter.should_checkpoint()
    now[0] = 60.0
    assert [reporter.should_checkpoint() for _ in range(2)] == [True, False]
    now[0] = 90.0
    reporter.save_begins()
    now[0] = 140.0
    assert not reporter.should_checkpoint(), "it counts from the last save"
    agent.ask(Control(interval_s=50.0))
    until(reporter.should_checkpoint)
    now[0] = 190.0
    agent.ask(Control(interval_s=50.0, behind=True))
    until(lambda: reporter.behind)
    assert not reporter.should_checkpoint(), "the store is behind"
    agent.ask(Control(interval_s=50.0, behind=True, checkpoint_request=1))
    until(reporter.should_checkpoint)
    now[0] = 240.0
    agent.ask(Control(interval_s=50.0, checkpoint_request=1))
    until(reporter.should_checkpoint)
    other = Reporter(None, rank=1, interval_s=60.0, clock=lambda: now[0])
    now[0] = 1000.0
    assert not other.should_checkpoint(), "its clock would tell it of another step"


def test_an_agent_that_is_gone_stops_the_rank(agent: AgentEnd) -> None:
    reporter = Reporter(agent.path)
    agent.wait_for(lambda said: len(said) == 1)
    agent.hang_up()
    until(lambda: reporter.should_stop() == AGENT_LOST)
    assert not reporter.connected
    assert reporter.flush(), "there was nothing to send"
    reporter.report({"loss": 1.0}, 1)
    assert not reporter.flush()


def test_without_an_agent_everything_goes_nowhere() -> None:
    reporter = Reporter(None)
    reporter.report({"loss": 1.0}, 1)
    reporter.shard_ready(SHARD)
    assert reporter.flush()
    assert reporter.should_stop() is None
    assert not reporter.should_checkpoint()


def test_a_block_of_data_that_is_left_out_is_told_at_once(agent: AgentEnd) -> None:
    reporter = Reporter(agent.path, flush_period_s=3600)
    found = DataDamaged(snapshot="corpus@xxh3-0", shard="a.tok", block=7, reason="other bytes")
    reporter.data_damaged(found)
    said = agent.wait_for(lambda said: len(said) > 1)
    assert said[1] == found
    Reporter(None).data_damaged(found)


def test_samples_to_leave_out_are_told_at_once(agent: AgentEnd) -> None:
    samples = (SampleRange(first=16, count=8), SampleRange(first=40, count=1))
    Reporter(agent.path).leave_out(samples)
    said = agent.wait_for(lambda said: len(said) > 1)
    assert said[1] == LeaveOutSamples(left_out=samples)


def test_a_damaged_file_is_told_and_the_answer_waited_for(agent: AgentEnd) -> None:
    reporter = Reporter(agent.path, flush_period_s=3600)
    answers: list[bool] = []

    def ask(file: str) -> threading.Thread:
        asking = threading.Thread(
            target=lambda: answers.append(reporter.another_copy(file, "is missing"))
        )
        asking.start()
        agent.wait_for(lambda said: CopyDamaged(file=file, reason="is missing") in said)
        return asking

    for sound in (True, False):
        asking = ask(f"rank-0000{sound:d}.bin")
        agent.ask(CopyReplaced(file="another.bin", sound=not sound))
        agent.ask(CopyReplaced(file=f"rank-0000{sound:d}.bin", sound=sound))
        asking.join()
    asking = ask("rank-00002.bin")
    agent.hang_up()
    asking.join()
    assert answers == [True, False, False], "nobody answers when the agent is gone"
    assert not Reporter(None).another_copy("x", "y")


def test_the_agent_hears_once_that_a_rank_asks_whether_to_stop(agent: AgentEnd) -> None:
    reporter = Reporter(agent.path, flush_period_s=3600)
    assert reporter.flush()
    assert HandlesStop() not in agent.said
    for _ in range(3):
        assert reporter.should_stop() is None
    assert reporter.flush()
    agent.ask(Control(stop="preempted"))
    until(lambda: reporter.should_stop() == "preempted")
    assert reporter.flush()
    assert agent.wait_for(lambda said: HandlesStop() in said).count(HandlesStop()) == 1
