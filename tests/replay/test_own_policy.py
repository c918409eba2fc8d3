"""The platform's recommended policy on the Philly week, with placement and real restart costs.

With known durations it is at or below shortest job first, without them at or below Tiresias.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gangline_scheduler.simulator.cluster import read_cluster
from gangline_scheduler.simulator.measure import Measures, measure
from gangline_scheduler.simulator.run import Workload, simulate, workload
from gangline_scheduler.simulator.trace import read_trace

DATA = Path(__file__).parent / "data"
SJF_JCT_S = 10_158.66
TIRESIAS_JCT_S = 10_103.65


@pytest.fixture(scope="module")
def week() -> Workload:
    path = DATA / "philly_week.csv.gz"
    return workload(path, read_trace(path), read_cluster(DATA / "philly_vc_nodes.csv").halved())


def run(policy: str, week: Workload) -> Measures:
    found = measure(policy, simulate(policy, week))
    print(
        f"\n{policy}: average JCT {found.jct_avg_s:,.2f} s, queue {found.queue_avg_s:,.2f} s, "
        f"{found.preemptions} preemptions, {found.gpu_hours_lost:.1f} GPU-hours lost"
    )
    assert found.jobs == 10_650
    return found


def test_with_known_durations_it_is_at_or_below_shortest_job_first(week: Workload) -> None:
    assert run("gangline", week).jct_avg_s <= SJF_JCT_S


def test_without_durations_it_is_at_or_below_tiresias(week: Workload) -> None:
    assert run("gangline-blind", week).jct_avg_s <= TIRESIAS_JCT_S
