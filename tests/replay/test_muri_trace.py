"""Muri's trace 3 on 64 GPUs: SRTF and SRSF give its simulator's published figures."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from gangline_simulator.cluster import one_pool
from gangline_simulator.measure import Measures, measure
from gangline_simulator.run import simulate, workload
from gangline_simulator.trace import read_trace

TRACE = Path(__file__).parent / "data" / "muri_trace3.csv.gz"
JOBS = 992


@cache
def figures(policy: str) -> Measures:
    work = workload(TRACE, read_trace(TRACE), one_pool(8))
    found = measure(policy, simulate(policy, work))
    print(f"\n{policy}: JCT {found.jct_avg_s:,.3f}, makespan {found.makespan_s:,.3f}")
    return found


@pytest.mark.nightly
def test_srsf_gives_the_published_average() -> None:
    found = figures("muri-srsf")
    assert found.jobs == JOBS
    assert found.jct_avg_s == pytest.approx(185_021.880, abs=0.001)


@pytest.mark.nightly
def test_srtf_gives_the_published_average_makespan_and_tail() -> None:
    found = figures("muri-srtf")
    assert found.jobs == JOBS
    assert found.jct_avg_s == pytest.approx(193_081.796, abs=0.001)
    assert found.makespan_s == pytest.approx(8_174_135.280, abs=0.001)
    assert found.jct_p99_s == pytest.approx(4_538_890.607, abs=0.001)


@pytest.mark.nightly
def test_srsf_is_better_than_srtf_as_published() -> None:
    assert figures("muri-srsf").jct_avg_s < figures("muri-srtf").jct_avg_s
