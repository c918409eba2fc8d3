"""Small replays by hand: who starts and ends when, what a preemption costs, the figures."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from gangline_scheduler.core.decide import Scheduler
from gangline_scheduler.core.model import Demand
from gangline_scheduler.core.policy.config import Policy, Preemption
from gangline_simulator.cluster import one_pool
from gangline_simulator.driver import Replay, StuckError
from gangline_simulator.errors import BadInputError
from gangline_simulator.ledger import Outcome, PoolResult
from gangline_simulator.measure import jain, measure, percentile
from gangline_simulator.pace import Pace
from gangline_simulator.papers.orders import ShortestRemaining, Tiresias
from gangline_simulator.papers.placement import EqualNodes, Fit, best_fit, first_fit, in_workers
from gangline_simulator.papers.scheduler import PreemptiveScheduler
from gangline_simulator.picture import curves, draw
from gangline_simulator.references import NAMED
from gangline_simulator.run import simulate, workload
from gangline_simulator.running import Costs
from gangline_simulator.table import table
from gangline_simulator.trace import Trace, TraceJob


def job(name: str, submit_s: float, duration_s: float, gpus: int = 8, team: str = "a") -> TraceJob:
    return TraceJob(name, submit_s, duration_s, gpus, team)


def ends(result: PoolResult) -> dict[str, float]:
    return {outcome.job.name: outcome.end_s for outcome in result.outcomes}


def run(policy: str, *jobs: TraceJob, nodes: int = 1) -> PoolResult:
    return NAMED[policy].prepare(one_pool(nodes).pools[0], jobs).run()


def test_fifo_lets_nobody_pass_the_first_that_does_not_fit() -> None:
    found = run("fifo", job("a", 0, 100, 4), job("b", 1, 10, 8), job("c", 2, 10, 1))
    assert ends(found) == {"a": 100.0, "b": 110.0, "c": 120.0}


def test_sjf_takes_the_shortest_that_waits() -> None:
    found = run("sjf", job("a", 0, 100), job("b", 1, 50), job("c", 2, 10), job("d", 2, 10))
    assert ends(found) == {"a": 100.0, "c": 110.0, "d": 120.0, "b": 170.0}


def test_a_moment_has_its_ends_before_its_arrivals_and_one_choice() -> None:
    """`b` and `c` come as `a` ends: the shorter starts, though the other came first."""
    found = run("sjf", job("a", 0, 10), job("b", 10, 50), job("c", 10, 5))
    assert ends(found) == {"a": 10.0, "c": 15.0, "b": 65.0}


def test_srtf_stops_the_longer_and_adds_what_it_costs() -> None:
    """`a` has 90 s left when `b` comes, pays 40 s, and each end is seen a second late."""
    found = run("srtf", job("a", 0, 100), job("b", 10, 20))
    assert ends(found) == {"b": 31.0, "a": 31.0 + 90 + 40 + 1}
    outcome = next(outcome for outcome in found.outcomes if outcome.job.name == "a")
    assert (outcome.preemptions, outcome.wait_s, outcome.lost_s) == (1, 21.0, 40.0)


def test_srsf_weighs_by_gpus() -> None:
    """60 s on one GPU are less than 10 s on eight."""
    jobs = (job("wide", 0, 10, 8), job("thin", 1, 60, 1))
    assert ends(run("srtf", *jobs))["wide"] == 11.0
    assert ends(run("srsf", *jobs))["thin"] == 62.0


def test_tiresias_lets_the_new_pass_who_held_more_than_its_share() -> None:
    """8 GPUs x 2,251 s are above 18,000 GPU-s: at the next full minute `b` comes first."""
    found = run("tiresias", job("a", 0, 5000), job("b", 100, 60))
    assert ends(found)["b"] == 2280.0 + 60 + 1
    assert ends(found)["a"] == 2400.0 + (5000 - 2280 + 40) + 1


def test_a_checkpoint_holds_the_gpus_and_its_time_is_lost() -> None:
    at_once = Preemption(min_runtime=timedelta(0))
    policy = Policy(
        order=ShortestRemaining(), placer=EqualNodes(), reservation="off", preemption=at_once
    )
    costs = Costs(checkpoint_s=lambda _: 30.0)
    jobs = (job("a", 0, 100), job("b", 10, 20))
    replay = Replay(
        one_pool(1).pools[0], jobs, PreemptiveScheduler(policy), costs=costs, check=True
    )
    found = replay.run()
    assert ends(found) == {"b": 60.0, "a": 150.0}
    assert sum(outcome.lost_s for outcome in found.outcomes) == 30.0


def test_a_gang_that_ends_before_its_checkpoint_has_just_ended() -> None:
    policy = Policy(order=ShortestRemaining(), placer=EqualNodes(), reservation="off")
    costs = Costs(checkpoint_s=lambda _: 500.0)
    jobs = (job("a", 0, 100), job("b", 10, 20))
    found = Replay(one_pool(1).pools[0], jobs, PreemptiveScheduler(policy), costs=costs).run()
    assert ends(found) == {"a": 100.0, "b": 120.0}
    assert [outcome.preemptions for outcome in found.outcomes] == [0, 0]


def test_the_live_scheduler_runs_a_trace_with_all_its_invariants() -> None:
    jobs = [job(f"j{n}", 7.0 * n, 60 + 13 * (n % 5), 1 + n % 9, "ab"[n % 2]) for n in range(60)]
    found = Replay(
        one_pool(2).pools[0], jobs, Scheduler(), pace=Pace(60.0, only_changes=False), check=True
    ).run()
    assert {outcome.job.name for outcome in found.outcomes} == {job.name for job in jobs}
    assert all(outcome.allocated_s == outcome.job.duration_s for outcome in found.outcomes)


def test_equal_input_gives_equal_output() -> None:
    jobs = [job(f"j{n}", 5.0 * n, 40 + n % 7 * 30, 1 + n % 8) for n in range(40)]
    assert run("srtf", *jobs) == run("srtf", *jobs)


def test_each_moment_costs_muris_jobs_a_start() -> None:
    """`b` comes at 20 s: of its 20 s `a` counts all but the 10 s of a start."""
    alone = ends(run("muri-srtf", job("a", 0, 100, 1)))
    both = ends(run("muri-srtf", job("a", 0, 100, 1), job("b", 20, 1000, 1)))
    assert both["a"] == pytest.approx(alone["a"] + 10.0)


def test_a_gang_that_never_fits_ends_the_replay_with_a_message() -> None:
    with pytest.raises(StuckError, match="1 jobs wait and nothing runs any more"):
        run("fifo", job("a", 0, 10, 12), nodes=1)


def test_a_gang_above_its_pool_is_refused_before() -> None:
    trace = Trace((job("a", 0, 10, 1), job("big", 0, 10, 64)))
    with pytest.raises(BadInputError, match="big asks for 64 and the cluster has 8"):
        workload(Path("t.csv"), trace, one_pool(1))


def test_a_worker_above_the_nodes_of_its_pool_is_refused_before() -> None:
    big = replace(job("big", 0, 10, 16), gpus_per_worker=16)
    with pytest.raises(
        BadInputError, match="big asks for 16 in workers of 16 and the cluster has 0"
    ):
        workload(Path("t.csv"), Trace((job("a", 0, 10, 16), big)), one_pool(4))


@pytest.mark.parametrize("policy", ["gangline", "fifo", "srtf", "tiresias", "muri-srtf"])
def test_workers_are_whole_under_every_policy(policy: str) -> None:
    """Two nodes of 8 hold one worker of 5 each, so the three gangs follow each other."""
    jobs = [replace(job(name, 0, 100, 10), gpus_per_worker=5) for name in "abc"]
    ended = ends(run(policy, *jobs, nodes=2))
    assert max(ended.values()) >= 300


def test_an_unknown_policy_is_refused_with_the_known_ones() -> None:
    work = workload(Path("t.csv"), Trace((job("a", 0, 10),)), one_pool(1))
    with pytest.raises(ValueError, match="'best' is not known"):
        simulate("best", work)


FITS = [
    # fit, GPUs, free GPUs by node, where it goes
    (best_fit, 2, {"a": 8, "b": 3, "c": 3}, (("b", 2),)),
    (best_fit, 5, {"a": 4, "b": 4}, None),
    (best_fit, 16, {"a": 8, "b": 5, "c": 8}, (("a", 8), ("c", 8))),
    (best_fit, 16, {"a": 8, "b": 7, "c": 7}, None),
    (best_fit, 11, {"a": 3, "b": 8, "c": 5}, (("b", 8), ("c", 3))),
    (best_fit, 11, {"a": 2, "b": 8}, None),
    (first_fit, 2, {"a": 8, "b": 3}, (("a", 2),)),
    (first_fit, 11, {"a": 3, "b": 8, "c": 5}, (("b", 8), ("a", 3))),
    (first_fit, 16, {"a": 8, "b": 5}, None),
]


@pytest.mark.parametrize(("fit", "gpus", "free", "where"), FITS)
def test_the_references_place_as_they_say(
    fit: object, gpus: int, free: dict[str, int], where: object
) -> None:
    assert fit(gpus, list(free.items()), 8) == where  # type: ignore[operator]


@pytest.mark.parametrize("fit", [best_fit, first_fit])
def test_a_node_counts_for_the_whole_workers_that_it_holds(fit: Fit) -> None:
    demand = Demand(gpus=12, gpus_per_worker=3)
    assert in_workers(fit, demand, [("a", 7), ("b", 8)], 8) == (("a", 6), ("b", 6))
    assert in_workers(fit, demand, [("a", 5), ("b", 8)], 8) is None
    assert in_workers(fit, Demand(gpus=9, gpus_per_worker=9), [("a", 8)], 8) is None


def test_the_names_of_orders_are_unique() -> None:
    orders = [ShortestRemaining(), ShortestRemaining(by_gpus=True), Tiresias()]
    assert [order.name for order in orders] == ["srtf", "srsf", "tiresias"]
    assert not any(order.strict for order in orders)


def test_the_figures_say_what_they_count() -> None:
    found = measure("fifo", [run("fifo", job("a", 0, 100, 4), job("b", 50, 150, 8))])
    assert (found.jct_avg_s, found.queue_avg_s, found.makespan_s) == (150.0, 25.0, 250.0)
    assert found.utilization == (4 * 100 + 8 * 150) / (8 * 250)
    assert (
        found.fragmentation == 0.5
    )  # while b waits, 4 of 8 GPUs idle on a node that is partly used
    assert (found.fairness, found.large_queue_p95_s) == (1.0, None)


def test_fairness_falls_when_one_team_waits() -> None:
    done = [
        Outcome(job("a", 0, 10, team="x"), 10.0, 10.0, 0, 0.0),
        Outcome(job("b", 0, 10, team="y"), 40.0, 10.0, 0, 0.0),
    ]
    found = measure("p", [PoolResult(8, tuple(done), ())])
    assert found.fairness == jain([1.0, 4.0]) == 25 / 34
    large = replace(done[1], job=job("c", 0, 10, 64, "y"))
    assert measure("p", [PoolResult(64, (large,), ())]).large_queue_p95_s == 30.0


def test_a_percentile_is_one_of_the_values() -> None:
    values = [float(n) for n in range(1000)]
    assert (percentile(values, 0.999), percentile(values, 0.5), percentile([4.0], 0.999)) == (
        999.0,
        500.0,
        4.0,
    )


def test_the_table_fits_80_columns() -> None:
    figures = measure("fifo", [run("fifo", job("a", 0, 1e7, 4))])
    text = table([replace(figures, policy=name) for name in NAMED])
    assert max(len(line) for line in text.splitlines()) <= 80
    assert all(name.upper() in text for name in NAMED)


def test_the_picture_holds_what_was_held(tmp_path: Path) -> None:
    result = run("fifo", job("a", 0, 100, 4), job("b", 0, 100, 8))
    hours, utilization, waiting = curves([result])
    assert sum(utilization) / len(utilization) == pytest.approx((4 * 100 + 8 * 100) / (8 * 200))
    assert sum(waiting) / len(waiting) == pytest.approx(0.5)
    assert hours[-1] < 200 / 3600
    draw({"fifo": [result]}, tmp_path / "p.svg")
    assert "hours since the first submission" in (tmp_path / "p.svg").read_text()
