"""Pools that are replayed in processes of their own end as one after the other."""

from __future__ import annotations

import pytest

from gangline_simulator.cluster import one_pool
from gangline_simulator.driver import StuckError
from gangline_simulator.run import Workload, simulate
from gangline_simulator.trace import TraceJob

POOL = one_pool(1).pools[0]


def test_the_results_are_equal_and_in_order() -> None:
    first = (TraceJob("a0", 0, 100, 4, "a"), TraceJob("a1", 1, 10, 8, "a"))
    second = (TraceJob("b0", 0, 50, 4, "b"),)
    work = Workload(((POOL, first), (POOL, second)))
    told: list[int] = []

    at_once = simulate("fifo", work, lambda _, ended, __: told.append(ended), processes=2)

    assert at_once == simulate("fifo", work, processes=1)
    ends = [{item.job.name: item.end_s for item in result.outcomes} for result in at_once]
    assert ends == [{"a0": 100.0, "a1": 110.0}, {"b0": 50.0}]
    assert told[-1] == 3


def test_one_that_cannot_end_says_so() -> None:
    part = (POOL, (TraceJob("large", 0, 10, 16, "a"),))
    with pytest.raises(StuckError, match="1 jobs wait and nothing runs"):
        simulate("fifo", Workload((part, part)), processes=2)
