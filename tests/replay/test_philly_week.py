"""A real week on 11 virtual clusters: the reference policies give the published figures.

`make soak` replays it. `make test` has two of the clusters, to the digit: test_own_policy.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gangline_simulator.cluster import read_cluster
from gangline_simulator.measure import Measures, measure
from gangline_simulator.run import Workload, simulate, workload
from gangline_simulator.trace import read_trace

DATA = Path(__file__).parent / "data"
PUBLISHED = {
    # policy: average JCT, average queue, p99.9 queue
    "fifo": (11_830.38, 4_001.38, 480_378),
    "sjf": (10_158.66, 2_329.66, 452_884),
    "tiresias": (10_103.65, 2_271.80, 412_159),
    "srtf": (9_408.43, 1_574.19, 355_265),
}
OWN = {
    # What docs/guides/simulate.md shows, to the digit: a change of the core must not move it.
    "fifo": (11_830.40, 4_001.40, 0),
    "sjf": (10_158.66, 2_329.66, 0),
    "tiresias": (10_103.65, 2_271.81, 472),
    "srtf": (9_408.43, 1_574.19, 1_117),
}


@pytest.fixture(scope="module")
def week() -> Workload:
    path = DATA / "philly_week.csv.gz"
    return workload(path, read_trace(path), read_cluster(DATA / "philly_vc_nodes.csv").halved())


def test_the_input_is_the_published_one(week: Workload) -> None:
    assert week.jobs == 10_650
    assert len(week.parts) == 11
    assert sum(pool.gpus for pool, _ in week.parts) == 1_408
    assert week.left_out == 0


@pytest.mark.nightly
@pytest.mark.parametrize("policy", PUBLISHED)
def test_a_reference_policy_gives_the_published_figures(policy: str, week: Workload) -> None:
    found = measure(policy, simulate(policy, week))
    _print(found)
    jct, queue, tail = PUBLISHED[policy]
    assert found.jobs == 10_650
    assert found.jct_avg_s == pytest.approx(jct, rel=0.001)
    assert found.queue_avg_s == pytest.approx(queue, rel=0.001)
    assert found.queue_p999_s == tail
    own = (round(found.jct_avg_s, 2), round(found.queue_avg_s, 2), found.preemptions)
    assert own == OWN[policy]


def _print(found: Measures) -> None:
    jct, queue, tail = PUBLISHED[found.policy]
    print(
        f"\n{found.policy:10} JCT {found.jct_avg_s:10,.2f} (published {jct:10,.2f})  "
        f"queue {found.queue_avg_s:9,.2f} ({queue:9,.2f})  "
        f"p99.9 {found.queue_p999_s:8,.0f} ({tail:8,.0f})"
    )
